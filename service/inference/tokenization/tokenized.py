"""A tokenised text, or a picture as the patches that the encoder sees.

Notation: S tokens, F features of a patch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from model.artifact.sentence import SentenceConfig
from service.engines.contract import Floats, Ids

TOKEN_BYTES, TEXT_BYTES = 40, 1024
"""Bytes of memory of each token of a tokenised text, and of the text's other objects."""
UNKNOWN_SHARE = 10
"""Number of tokens per unknown token below which a text is mostly unknown."""


Places = NDArray[np.int32]
Tower = Literal["text", "vision"]
"""Tower of a model with an encoder for texts and one for pictures, such as CLIP."""


class SharedNames:
    """Names of tokens, as one string object for all texts.

    The number of shared names is limited to the size of the vocabulary, since some models name an
    unknown token by its characters.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: dict[str, str] = {}

    def share(self, names: Sequence[str]) -> list[str]:
        """Return equal names, as the string objects of earlier calls."""
        known = self._known
        if len(known) < self._size:
            return [known.setdefault(name, name) for name in names]
        return [known.get(name, name) for name in names]


def places_of(offsets: Sequence[tuple[int, int]]) -> Places:
    """Return offsets as an array `[S, 2]`."""
    flat = np.fromiter(chain.from_iterable(offsets), np.int32, 2 * len(offsets))
    return flat.reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class PictureView:
    """Size of a picture, and the part of it that the encoder sees."""

    grid: tuple[int, int]
    """Rows and columns of patches."""
    size: tuple[int, int]
    """Width and height in pixels, as the picture is displayed."""
    crop: tuple[float, float, float, float]
    """Left, top, right and bottom of the seen part, in pixels of the displayed picture."""


@dataclass(slots=True, eq=False)
class TokenizedText:
    """Model inputs of a text, and offsets of its tokens in the client's string.

    A picture's tokens are its special tokens, then its patches row by row, each named by its row
    and column, such as `0,1`. Its `places` are zeros.
    """

    tokens: list[str]
    """Names of the tokens, which all texts share; see `SharedNames`."""
    input_ids: Ids
    """`[S]`."""
    segment_ids: Ids
    """`[S]`, token types; all are the number of the text's task, if it has one."""
    places: Places
    """`[S, 2]`: `offsets` as an array."""
    truncated: bool
    prompt_tokens: int
    """Number of leading tokens that pooling without the prompt leaves out; 0 without a prompt."""
    special_tokens_mask: Sequence[int]
    """1 for each special token that the tokenizer added, and for each token of a prompt."""
    unknown: NDArray[np.bool_]
    """`[S]`: whether a token is the unknown token; false for special tokens and prompts."""
    padding_tokens: int = 0
    """Number of padding tokens at the end, which other tokens attend to."""
    pad: Callable[[TokenizedText], TokenizedText] | None = None
    """Function that pads a text again after it was cut; None for texts without padding."""
    target: TokenizedText | None = None
    """Labels that a decoder is taken to have written for the text."""
    pixels: Floats | None = None
    """`[S, F]`: values of each patch of a picture, and zeros for its special tokens."""
    picture: PictureView | None = None
    """Size and crop of a picture; None for a text."""
    tower: Tower | None = None
    """Tower that encodes it; None for a model with one encoder."""

    @property
    def segment(self) -> int:
        """Token type of the first token: 0, or the number of the text's task."""
        return int(self.segment_ids[0])

    @property
    def segments(self) -> Ids:
        """Segments of the tokens in a reply, `[S]`: texts with a task are of one segment."""
        return np.zeros_like(self.segment_ids) if self.segment else self.segment_ids

    @property
    def mostly_unknown(self) -> bool:
        """Whether more than a tenth of the text's own tokens are the unknown token."""
        count = np.count_nonzero(self.unknown)
        if not count:
            return False
        return UNKNOWN_SHARE * int(count) > len(self.unknown) - sum(self.special_tokens_mask)

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Start and end of each token in code points of the client's text, or its text of a pair.

        (0, 0) for special tokens and tokens of a prompt.
        """
        return list(zip(*self.places.T.tolist(), strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the text or picture holds."""
        pixels = 0 if self.pixels is None else self.pixels.nbytes
        return TEXT_BYTES + TOKEN_BYTES * len(self.input_ids) + pixels

    def first_pooled(self, sentence: SentenceConfig) -> int:
        """Return the index of the first pooled token, which follows an excluded prompt."""
        if sentence.include_prompt:
            return 0
        return min(self.prompt_tokens, len(self.input_ids) - 1)


class TextEnds:
    """Completion of tokenised texts as an artifact's `SentenceConfig` asks for."""

    def __init__(self, sentence: SentenceConfig, tokenizer: Tokenizer) -> None:
        self._end = sentence.end_token_id
        self._padding = sentence.pad_token_id
        named = None if self._padding is None else tokenizer.id_to_token(self._padding)
        self._name = named or ""
        self.length = 0 if self._padding is None else sentence.max_length
        """Number of tokens of every text; 0 if texts are not padded."""

    def complete(self, text: TokenizedText) -> TokenizedText:
        """Return a text without tokens after its first end token, and with padding.

        Padding tokens are special tokens that other tokens attend to. A text that is cut counts as
        truncated: its vector is the same, as later tokens cannot change the state of the end token.
        """
        if self._end is not None:
            (ends,) = np.nonzero(text.input_ids[:-1] == self._end)
            if len(ends):
                text = _first(text, int(ends[0]) + 1)
        return self._padded(text) if self.length else text

    def _padded(self, text: TokenizedText) -> TokenizedText:
        count = max(0, self.length - len(text.input_ids))
        ids = np.full(count, self._padding, np.int64)
        return replace(
            text,
            tokens=[*text.tokens, *[self._name] * count],
            input_ids=np.concatenate([text.input_ids, ids]),
            segment_ids=np.concatenate([text.segment_ids, np.zeros(count, np.int64)]),
            places=np.concatenate([text.places, np.zeros((count, 2), np.int32)]),
            special_tokens_mask=bytes([*text.special_tokens_mask, *[1] * count]),
            unknown=np.concatenate([text.unknown, np.zeros(count, bool)]),
            padding_tokens=count,
            pad=self._padded,
        )


def without_padding(text: TokenizedText) -> TokenizedText:
    """Return a text without its padding tokens."""
    whole = len(text.input_ids) - text.padding_tokens
    return replace(_first(text, whole), truncated=text.truncated, padding_tokens=0, pad=None)


def _first(text: TokenizedText, count: int) -> TokenizedText:
    """Return the first tokens of a text, as truncated."""
    return replace(
        text,
        tokens=text.tokens[:count],
        input_ids=text.input_ids[:count],
        segment_ids=text.segment_ids[:count],
        places=text.places[:count],
        special_tokens_mask=text.special_tokens_mask[:count],
        unknown=text.unknown[:count],
        truncated=True,
    )
