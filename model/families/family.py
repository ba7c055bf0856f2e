"""Description of a family of checkpoints: its config, its keys. Without torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from model.config import EncoderConfig

if TYPE_CHECKING:
    from torch import Tensor

_WRAPPERS = ("0.auto_model.", "auto_model.", "model.")
"""Prefixes of the keys of an encoder that was saved inside something else."""
_TOGETHER = {
    "attention.together": ("attention.query", "attention.key", "attention.value"),
    "feed_forward.together": ("feed_forward.gate", "feed_forward.expand"),
}


def as_it_is(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """The tensor under its name."""
    return {name: tensor}


def split_together(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Maps that a checkpoint keeps in one tensor, `attention.together` or `feed_forward.together`.

    Queries, keys and values; and what is activated in a gated feed-forward before the rest.
    """
    for together, parts in _TOGETHER.items():
        if together in name:
            pieces = tensor.chunk(len(parts))
            names = (name.replace(together, part) for part in parts)
            return dict(zip(names, pieces, strict=True))
    return {name: tensor}


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
    convert: Callable[[str, Tensor], Mapping[str, Tensor]] = as_it_is
    """A renamed key and its tensor → the encoder's own keys and tensors: where a checkpoint keeps
    several maps in one tensor, or a parameter in another form."""

    def encoder_key(self, key: str) -> str | None:
        """A checkpoint's key, renamed, or None for what lies outside the encoder."""
        key = self._without_prefixes(key)
        if self.outside.search(key):
            return None
        for pattern, replacement in self.renames:
            key = re.sub(pattern, replacement, key)
        return key

    def _without_prefixes(self, key: str) -> str:
        for prefix in (*_WRAPPERS, self.prefix):
            if prefix and key.startswith(prefix):
                return self._without_prefixes(key.removeprefix(prefix))
        return key
