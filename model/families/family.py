"""Description of a family of checkpoints: its config, its keys. Without torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

Renames = tuple[tuple[str, str], ...]
"""Patterns and their replacements, applied in order."""
SinusoidLayout = Literal["marian", "m2m_100"]
WORDS = "embeddings.word.weight"
"""Key of the word embedding in the encoder and in the decoder."""
OUTPUT = "lm_head.weight"
"""Key of the output map over words in a checkpoint."""
_DECODER, _SHARED = "decoder.", "shared"
_OUTPUTS = {OUTPUT: "output.weight", "final_logits_bias": "output_bias"}
_WRAPPERS = ("0.auto_model.", "auto_model.", "model.")
"""Key prefixes of an encoder that was saved inside another module."""
_TOGETHER = {
    "attention.together": ("attention.query", "attention.key", "attention.value"),
    "feed_forward.together": ("feed_forward.gate", "feed_forward.expand"),
    "feed_forward.up_gate": ("feed_forward.expand", "feed_forward.gate"),
}


def as_it_is(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the tensor under its name."""
    return {name: tensor}


def split_together(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Split a tensor that holds several maps, `…together` or `…up_gate`.

    These are queries, keys and values; and both maps of a gated feed-forward, the activated one
    first (`together`) or last (`up_gate`).
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
    """Function from the content of a `config.json` to the encoder's config; raises
    `ValidationError`."""
    prefix: str
    """Prefix of the encoder's keys in a checkpoint of a task model."""
    outside: re.Pattern[str]
    """Keys, without the prefix, of tensors outside the encoder."""
    renames: Renames
    """Replacements that turn a checkpoint's keys into the encoder's."""
    convert: Callable[[str, Tensor], Mapping[str, Tensor]] = as_it_is
    """Function from a renamed key and its tensor to the encoder's keys and tensors, for checkpoints
    that store several maps in one tensor, or a parameter in another form."""
    tied_words: tuple[str, ...] = ()
    """Possible keys of the word embedding, without the prefix, the encoder's own first: a
    checkpoint may store some or all tied weights."""
    sinusoids: SinusoidLayout | None = None
    """Layout of a sinusoidal position table that checkpoints do not store."""
    antialiased_positions: bool = False
    """Whether transformers interpolates a picture encoder's position table with antialiasing."""
    decoder: Callable[[Mapping[str, Any]], DecoderConfig | None] | None = None
    """Function from the content of a `config.json` to the decoder's config, None if there is only
    an encoder; raises `ValidationError`."""
    decoder_renames: Renames = ()
    """Replacements before `renames` for a decoder's keys."""
    half: bool = True
    """Whether hidden states of its checkpoints stay within half precision's maximum of 65,504."""

    refused: Renames = ()
    """Patterns of keys of builds that are not supported, and the descriptions of these builds."""

    def check_supported(self, keys: Collection[str], source: str) -> None:
        """Raise an error for keys of a build that is not supported."""
        for pattern, build in self.refused:
            if key := next((key for key in sorted(keys) if re.search(pattern, key)), None):
                raise CheckpointError(f"{source} holds {key}: it is {build}")

    def encoder_keys(self, keys: Collection[str]) -> dict[str, str]:
        """Return a checkpoint's keys of the encoder → the encoder's own keys."""
        renamed = {key: self.encoder_key(key) for key in keys}
        encoder_names = {key: name for key, name in renamed.items() if name is not None}
        return self._words(keys, self.tied_words) | encoder_names

    def encoder_key(self, key: str) -> str | None:
        """Return a checkpoint's key, renamed; None for a key outside the encoder."""
        key = self._without_prefixes(key)
        return None if self.outside.search(key) else _renamed(key, self.renames)

    def decoder_keys(self, keys: Collection[str]) -> dict[str, str]:
        """Return a checkpoint's keys of the decoder → the decoder's own keys.

        They include the output map if it has a key of its own.
        """
        own_first = sorted(
            self.tied_words,
            key=lambda key: (not key.startswith(_DECODER), not key.startswith(_SHARED)),
        )
        names = self._words(keys, own_first)
        for key in keys:
            plain = self._without_prefixes(key)
            inner = plain.removeprefix(_DECODER)
            if key not in names and plain in _OUTPUTS:
                names[key] = _OUTPUTS[plain]
            elif inner != plain and not self.outside.search(inner):
                inner = _renamed(inner, (*self.decoder_renames, *self.renames))
                names[key] = re.sub(r"^(layers\.\d+\.)(?!cross)", r"\1own.", inner)
        return names

    def _words(self, keys: Collection[str], tied: Collection[str]) -> dict[str, str]:
        """Return a checkpoint's key of the word embedding, for families that tie it to others."""
        present = {self._without_prefixes(key): key for key in keys}
        return {
            present[key]: WORDS
            for key in [word_key for word_key in tied if word_key in present][:1]
        }

    def _without_prefixes(self, key: str) -> str:
        for prefix in (*_WRAPPERS, self.prefix):
            if prefix and key.startswith(prefix):
                return self._without_prefixes(key.removeprefix(prefix))
        return key


def _renamed(key: str, renames: Renames) -> str:
    for pattern, replacement in renames:
        key = re.sub(pattern, replacement, key)
    return key
