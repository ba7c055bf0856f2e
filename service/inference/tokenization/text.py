"""A tokenised text, or a picture as the patches that the encoder sees.

Notation: S tokens, F features of a patch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from model.artifact.sentence import SentenceConfig
from service.engines.contract import Floats, Ids
from service.inference.tokenization.prompts import NO_PROMPT, Prompt

TEXT_BYTES = 1024
"""Bytes of memory of a tokenised text beside its tokens."""
UNKNOWN_SHARE = 10
"""Number of tokens per unknown token below which a text is mostly unknown."""

Offset = tuple[int, int]
Places = NDArray[np.int32]
TokenRanges = NDArray[np.int64]
"""First token and token after the last of each span, `[n, 2]`."""
Tower = Literal["text", "vision"]
"""Tower of a model with an encoder for texts and one for pictures, such as CLIP."""
Value = TypeVar("Value")


def places_of(offsets: Sequence[Offset]) -> Places:
    """Return offsets as an array `[S, 2]`."""
    flat = np.fromiter(chain.from_iterable(offsets), np.int32, 2 * len(offsets))
    return flat.reshape(-1, 2)


def unknown_of(
    ids: Ids, unknown_ids: frozenset[int], special_tokens_mask: Sequence[int]
) -> NDArray[np.bool_]:
    """Return for each id of `[S]` whether it is the unknown token, and no special one.

    CLIP's unknown token is the one that ends each text, too.
    """
    return np.isin(ids, [*unknown_ids]) & ~np.array([*special_tokens_mask], bool)


@dataclass(frozen=True, slots=True)
class PictureView:
    """Size of a picture, and the part of it that the encoder sees."""

    grid: tuple[int, int]
    """Rows and columns of patches."""
    size: tuple[int, int]
    """Width and height in pixels, as the picture is displayed."""
    crop: tuple[float, float, float, float]
    """Left, top, right and bottom of the seen part, in pixels of the displayed picture."""


@dataclass(frozen=True, slots=True)
class TextSpans:
    """Spans of a text, of which a vector each is computed."""

    places: Places
    """Start and end of each span in code points, `[n, 2]`."""
    ranges: TokenRanges
    """Tokens of each span; at least one."""


class Cut(NamedTuple):
    """Tokens of an encoding that truncation keeps."""

    kept: Sequence[int]
    """Indices of the tokens."""
    left: bool
    """Whether the start of the text was cut off."""
    skipped: tuple[int, int] = (0, 0)
    """Number of characters before the encoded part of a text, and of the second of a pair."""


class Text:
    """Tokens of a text or pair, in the tokenizer's memory until the engine or a reply asks."""

    truncated: bool = False
    prompt_tokens: int = 0
    """Number of leading tokens that pooling without the prompt leaves out; 0 without a prompt."""
    padding_tokens: int = 0
    """Number of padding tokens at the end, which other tokens attend to."""
    pad: Callable[[Text], Text] | None = None
    """Function that pads a text again after it was cut; None for texts without padding."""
    target: Text | None = None
    """Labels that a decoder is taken to have written for the text."""
    pixels: Floats | None = None
    """`[S, F]`: values of each patch of a picture, and zeros for its special tokens."""
    picture: PictureView | None = None
    """Size and crop of a picture; None for a text."""
    tower: Tower | None = None
    """Tower that encodes it; None for a model with one encoder."""
    spans: TextSpans | None = None
    """Spans or chunks of the text, if vectors of them are requested."""
    windows: int = 1
    """Number of windows in which the text is encoded."""

    token_bytes: ClassVar[int] = 184
    """Bytes of memory of a token, in the tokenizer measured with the GNU C library."""
    _all_known: bool = False

    def __init__(
        self,
        encoding: Encoding,
        ids: list[int],
        unknown_ids: frozenset[int],
        prompt: Prompt = NO_PROMPT,
        cut: Cut | None = None,
    ) -> None:
        """Read the token ids of a text.

        Args:
            encoding: prompt and text, or pair.
            ids: the model's ids of its tokens.
            unknown_ids: ids of the unknown token.
            prompt: prompt of the text.
            cut: the tokens to keep; None for all.

        """
        self._encoding, self._prompt, self._cut = encoding, prompt, cut
        if cut:
            ids, self.truncated = self._kept(ids), True
        self.size = len(ids)
        """Number of tokens S."""
        self.input_ids: Ids = np.array(ids, np.int64)
        """`[S]`."""
        self._unknown_ids = unknown_ids
        self._all_known = unknown_ids.isdisjoint(ids)
        if prompt.text:
            self.prompt_tokens = self._count_prompt()

    @property
    def tokens(self) -> list[str]:
        """Names of the tokens."""
        names = self._encoding.tokens
        return self._kept(names) if self._cut else names

    @property
    def offsets(self) -> list[Offset]:
        """Start and end of each token in code points of the client's text, or its text of a pair.

        (0, 0) for special tokens and tokens of a prompt.
        """
        before = len(self._prompt.text)
        if not (before or self._cut):
            return self._encoding.offsets
        offsets = self._offsets_after_prompt
        if not before:
            return offsets
        return [
            (max(start - before, 0), max(end - before, 0)) if sequence == 0 else (start, end)
            for sequence, (start, end) in zip(self._sequences, offsets, strict=True)
        ]

    @property
    def places(self) -> Places:
        """`[S, 2]`: `offsets` as an array."""
        return places_of(self.offsets)

    @property
    def special_tokens_mask(self) -> Sequence[int]:
        """1 for each special token that the tokenizer added, and for each token of a prompt."""
        special, first = self._kept(self._encoding.special_tokens_mask), self.prompt_tokens
        return [*[1] * first, *special[first:]] if first else special

    @property
    def segments(self) -> list[int]:
        """Segments of the tokens in a reply: texts with a task are of one segment."""
        if self._prompt.segment is not None:
            return [0] * self.size
        segments = self._encoding.type_ids
        return self._kept(segments) if self._cut else segments

    @property
    def segment_ids(self) -> Ids:
        """`[S]`, token types; all are the number of the text's task, if it has one."""
        if task := self._prompt.segment:
            return np.full(self.size, task)
        return np.array(self.segments, np.int64)

    @property
    def segment(self) -> int:
        """Token type of the first token: 0, or the number of the text's task."""
        return int(self.segment_ids[0])

    @property
    def unknown(self) -> NDArray[np.bool_]:
        """`[S]`: whether a token is the unknown token; false for special tokens and prompts."""
        if self._all_known:
            return np.zeros(self.size, bool)
        return unknown_of(self.input_ids, self._unknown_ids, self.special_tokens_mask)

    @property
    def mostly_unknown(self) -> bool:
        """Whether more than a tenth of the text's own tokens are the unknown token."""
        if self._all_known:
            return False
        count = int(np.count_nonzero(self.unknown))
        return UNKNOWN_SHARE * count > self.size - sum(self.special_tokens_mask)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the text or picture holds."""
        pixels = 0 if self.pixels is None else self.pixels.nbytes
        return TEXT_BYTES + self.token_bytes * self.size + pixels

    def first_pooled(self, sentence: SentenceConfig) -> int:
        """Return the index of the first pooled token, which follows an excluded prompt."""
        if sentence.include_prompt:
            return 0
        return min(self.prompt_tokens, self.size - 1)

    def in_arrays(self) -> ArrayText:
        """Return the text as arrays, which take less memory."""
        return ArrayText(
            tokens=self.tokens,
            input_ids=self.input_ids,
            segment_ids=self.segment_ids,
            places=self.places,
            truncated=self.truncated,
            prompt_tokens=self.prompt_tokens,
            special_tokens_mask=bytes(self.special_tokens_mask),
            unknown=self.unknown,
            target=self.target,
            tower=self.tower,
        )

    def _kept(self, values: list[Value]) -> list[Value]:
        """Return the values of the kept tokens, of one value for each token of the encoding."""
        return [values[index] for index in self._cut.kept] if self._cut else values

    @property
    def _sequences(self) -> list[int | None]:
        """Index of the text of a pair that each token is of; None for special tokens."""
        return self._kept(self._encoding.sequence_ids)

    @property
    def _offsets_after_prompt(self) -> list[Offset]:
        """Start and end of each token in the prompt and the text."""
        offsets = self._kept(self._encoding.offsets)
        if not self._cut or not any(self._cut.skipped):
            return offsets
        before = {0: self._cut.skipped[0], 1: self._cut.skipped[1], None: 0}
        return [
            (start + before[sequence], end + before[sequence])
            for sequence, (start, end) in zip(self._sequences, offsets, strict=True)
        ]

    def _count_prompt(self) -> int:
        """Return the number of tokens up to the prompt's last."""
        if not (self._cut and self._cut.left):
            return min(self._prompt.tokens, self.size)
        tokens = enumerate(zip(self._sequences, self._offsets_after_prompt, strict=True), 1)
        length = len(self._prompt.text)
        return max((n for n, (own, (_, end)) in tokens if own == 0 and end <= length), default=0)


@dataclass(slots=True, eq=False)
class ArrayText(Text):
    """Tokens in arrays, and equal names as one string, which take less memory.

    So are token ids, padded texts, chat templates, pictures, and the texts of large requests.
    A picture's tokens are its special tokens, then its patches row by row, each named by its row
    and column, such as `0,1`. Its `places` are zeros.
    """

    tokens: list[str] = field()
    input_ids: Ids = field()
    segment_ids: Ids = field()
    places: Places = field()
    truncated: bool = field()
    prompt_tokens: int = field()
    special_tokens_mask: Sequence[int] = field()
    unknown: NDArray[np.bool_] = field()
    padding_tokens: int = 0
    pad: Callable[[Text], Text] | None = None
    target: Text | None = None
    pixels: Floats | None = None
    picture: PictureView | None = None
    tower: Tower | None = None
    spans: TextSpans | None = None
    windows: int = 1
    size: int = field(init=False)
    token_bytes: ClassVar[int] = 40

    def __post_init__(self) -> None:
        """Share equal names, which are most of the memory."""
        self.tokens = [*map(sys.intern, self.tokens)]
        self.size = len(self.input_ids)

    @property
    def offsets(self) -> list[Offset]:
        """`places` as pairs."""
        return list(zip(*self.places.T.tolist(), strict=True))

    @property
    def segments(self) -> list[int]:
        """Segments in a reply, as in `Text`."""
        return [0] * self.size if self.segment else self.segment_ids.tolist()

    def in_arrays(self) -> ArrayText:
        """Return the text itself."""
        return self

    def of(self, kept: slice | Sequence[int], *, cut: bool = True) -> ArrayText:
        """Return some of the tokens; the text counts as truncated if it is cut."""
        indices = range(self.size)[kept] if isinstance(kept, slice) else kept
        mask = self.special_tokens_mask
        return replace(
            self,
            tokens=[self.tokens[index] for index in indices],
            input_ids=self.input_ids[kept],
            segment_ids=self.segment_ids[kept],
            places=self.places[kept],
            special_tokens_mask=bytes(mask[index] for index in indices),
            unknown=self.unknown[kept],
            truncated=self.truncated or cut,
        )


class TextEnds:
    """Completion of tokenised texts as an artifact's `SentenceConfig` asks for."""

    def __init__(self, sentence: SentenceConfig, tokenizer: Tokenizer) -> None:
        self._end, padding = sentence.end_token_id, sentence.pad_token_id
        self._padding = padding
        self._name = "" if padding is None else tokenizer.id_to_token(padding) or ""
        self.length = 0 if padding is None else sentence.max_length
        """Number of tokens of every text; 0 if texts are not padded."""
        self.needed = self._end is not None or self.length > 0
        """Whether `complete` changes texts."""

    def complete(self, text: Text) -> Text:
        """Return a text without tokens after its first end token, and with padding.

        Padding tokens are special tokens that other tokens attend to. A text that is cut counts as
        truncated: its vector is the same, as later tokens cannot change the state of the end token.
        """
        if self._end is not None:
            (ends,) = np.nonzero(text.input_ids[:-1] == self._end)
            if len(ends):
                text = text.in_arrays().of(slice(int(ends[0]) + 1))
        return self._padded(text) if self.length else text

    def _padded(self, given: Text) -> Text:
        text, count = given.in_arrays(), max(0, self.length - given.size)
        return replace(
            text,
            tokens=[*text.tokens, *[self._name] * count],
            input_ids=np.append(text.input_ids, np.full(count, self._padding, np.int64)),
            segment_ids=np.pad(text.segment_ids, (0, count)),
            places=np.pad(text.places, ((0, count), (0, 0))),
            special_tokens_mask=bytes([*text.special_tokens_mask, *[1] * count]),
            unknown=np.pad(text.unknown, (0, count)),
            padding_tokens=count,
            pad=self._padded,
        )
