"""Description of a family of checkpoints: its config, its keys. Without torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from model.config import EncoderConfig


@dataclass(frozen=True)
class Family:
    """Checkpoints of one `model_type`."""

    config: Callable[[Mapping[str, Any]], EncoderConfig]
    """The content of a `config.json` → the encoder's configuration; raises `ValidationError`."""
    prefix: str
    """Prefix of the encoder's keys in a checkpoint of a task model."""
    outside: re.Pattern[str]
    """Keys, without the prefix, of tensors outside the encoder."""
    renames: tuple[tuple[str, str], ...]
    """Patterns and replacements, all applied in this order, that give the encoder's own keys."""

    def encoder_key(self, key: str) -> str | None:
        """A checkpoint's key → the encoder's own, or None for what lies outside the encoder."""
        key = key.removeprefix(self.prefix)
        if self.outside.search(key):
            return None
        for pattern, replacement in self.renames:
            key = re.sub(pattern, replacement, key)
        return key
