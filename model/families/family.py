"""Description of a family of checkpoints: its config, its keys. Without torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig

if TYPE_CHECKING:
    from torch import Tensor

Renames = tuple[tuple[str, str], ...]
"""Patterns and replacements, all applied in their order."""
SinusoidLayout = Literal["marian", "m2m_100"]
WORDS = "embeddings.word.weight"
"""The encoder's and the decoder's own key of the word embedding."""
OUTPUT = "lm_head.weight"
"""A checkpoint's key of the output map over words."""
_DECODER, _SHARED = "decoder.", "shared"
_OUTPUTS = {OUTPUT: "output.weight", "final_logits_bias": "output_bias"}
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
    renames: Renames
    """What gives the encoder's own keys."""
    convert: Callable[[str, Tensor], Mapping[str, Tensor]] = as_it_is
    """A renamed key and its tensor → the encoder's own keys and tensors: where a checkpoint keeps
    several maps in one tensor, or a parameter in another form."""
    tied_words: tuple[str, ...] = ()
    """Keys, without the prefix, that the word embedding may have, the encoder's own first: of tied
    weights a checkpoint may hold all or any."""
    sinusoids: SinusoidLayout | None = None
    """Of a position table that checkpoints leave out."""
    decoder: Callable[[Mapping[str, Any]], DecoderConfig | None] | None = None
    """The content of a `config.json` → the decoder's configuration, None for an encoder alone;
    raises `ValidationError`."""
    decoder_renames: Renames = ()
    """What comes before `renames` for a decoder's keys."""
    half: bool = True
    """Whether hidden states of its checkpoints stay within half precision's 65,504."""

    def encoder_keys(self, keys: Collection[str]) -> dict[str, str]:
        """The keys of a checkpoint that are the encoder's → the encoder's own."""
        renamed = {key: self.encoder_key(key) for key in keys}
        found = {key: name for key, name in renamed.items() if name is not None}
        return self._words(keys, self.tied_words) | found

    def encoder_key(self, key: str) -> str | None:
        """A checkpoint's key, renamed, or None for what lies outside the encoder."""
        key = self._without_prefixes(key)
        return None if self.outside.search(key) else _renamed(key, self.renames)

    def decoder_keys(self, keys: Collection[str]) -> dict[str, str]:
        """The keys of a checkpoint that are the decoder's → the decoder's own.

        With its output map, where that has a key of its own.
        """
        own_first = sorted(
            self.tied_words,
            key=lambda key: (not key.startswith(_DECODER), not key.startswith(_SHARED)),
        )
        names = self._words(keys, own_first)
        for key in keys:
            plain = self._without_prefixes(key)
            rest = plain.removeprefix(_DECODER)
            if key not in names and plain in _OUTPUTS:
                names[key] = _OUTPUTS[plain]
            elif rest != plain and not self.outside.search(rest):
                rest = _renamed(rest, (*self.decoder_renames, *self.renames))
                names[key] = re.sub(r"^(layers\.\d+\.)(?!cross)", r"\1own.", rest)
        return names

    def _words(self, keys: Collection[str], tied: Collection[str]) -> dict[str, str]:
        """The key that the word embedding is read from, where a family ties it to others."""
        there = {self._without_prefixes(key): key for key in keys}
        return {there[key]: WORDS for key in [each for each in tied if each in there][:1]}

    def _without_prefixes(self, key: str) -> str:
        for prefix in (*_WRAPPERS, self.prefix):
            if prefix and key.startswith(prefix):
                return self._without_prefixes(key.removeprefix(prefix))
        return key


def _renamed(key: str, renames: Renames) -> str:
    for pattern, replacement in renames:
        key = re.sub(pattern, replacement, key)
    return key
