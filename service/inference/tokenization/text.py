"""A tokenised text, or a picture as the patches that the encoder sees.

Notation: S tokens, F features of a patch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from model.artifact.sentence import SentenceConfig
from service.engines.contract import Floats, Ids

TEXT_BYTES = 1024
"""Bytes of memory of a tokenised text beside its tokens."""
UNKNOWN_SHARE = 10
"""Number of tokens per unknown token below which a text is mostly unknown."""
_FIRST_OF_LENGTH = (0x80, 0x800, 0x10000)
"""First code points of 2, 3 and 4 bytes in UTF-8 (RFC 3629)."""

Offset = tuple[int, int]
Places = NDArray[np.int32]
TokenRanges = NDArray[np.int64]
"""First token and token after the last of each span, `[n, 2]`."""
Tower = Literal["text", "vision"]
"""Tower of a model with an encoder for texts and one for pictures, such as CLIP."""


def places_of(offsets: Sequence[Offset]) -> Places:
    """Return offsets as an array `[S, 2]`."""
    flat = np.fromiter(chain.from_iterable(offsets), np.int32, 2 * len(offsets))
    return flat.reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Prefix of texts."""

    text: str
    tokens: int
    """Number of tokens of the prompt, special tokens at its beginning included."""
    segment: int | None = None
    """Token type of all tokens: the number of the task that the prompt is of, 0 for none; None for
    a model without tasks, whose tokenizer decides."""


NO_PROMPT = Prompt("", 0)


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


def _at(indices: Sequence[int], values: Sequence[Any]) -> list[Any]:
    return [values[index] for index in indices]


@dataclass(init=False, eq=False, repr=False, kw_only=True)
class Text:
    """Tokens of a text or pair, in the tokenizer's memory until the engine or a reply asks."""

    truncated: bool = False
    unknown_ids: frozenset[int] = frozenset()
    """Ids of the unknown token, if the text has it."""
    prompt_tokens: int = 0
    """Number of leading tokens that pooling without the prompt leaves out; 0 without a prompt."""
    mostly_unknown = False
    """Whether more than a tenth of the text's own tokens are the unknown token."""
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

    def __init__(
        self,
        encoding: Encoding,
        ids: list[int],
        unknown_ids: frozenset[int],
        prompt: Prompt = NO_PROMPT,
        cut: Cut | None = None,
    ) -> None:
        """Read the token ids of a text, or pair, after its prompt.

        `ids` are the model's ids of the encoding's tokens, of which `cut` keeps some.
        """
        self._encoding, self._prompt, self._cut = encoding, prompt, cut
        self._kept: Callable[[list[Any]], list[Any]] = partial(_at, cut.kept) if cut else list
        """Function that returns the values of the kept tokens, of a value for each token."""
        if cut:
            ids, self.truncated = self._kept(ids), True
        self.size = len(ids)
        """Number of tokens S."""
        self.input_ids: Ids = np.array(ids, np.int64)
        """`[S]`."""
        if prompt.text:
            self.prompt_tokens = self._count_prompt()
        if not unknown_ids.isdisjoint(ids):
            self.unknown_ids = unknown_ids
            self._count_unknown()

    @property
    def tokens(self) -> list[str]:
        """Names of the tokens."""
        return self._kept(self._encoding.tokens)

    @property
    def offsets(self) -> list[Offset]:
        """Start and end of each token in code points of the client's text, or its text of a pair.

        (0, 0) for special tokens and tokens of a prompt.
        """
        offsets = self._kept(self._encoding.offsets)
        first, second = self._cut.skipped if self._cut else (0, 0)
        moved = {0: first - len(self._prompt.text), 1: second, None: 0}
        if not any(moved.values()):
            return offsets
        sequences = self._kept(self._encoding.sequence_ids)
        return [
            (max(start + moved[sequence], 0), max(end + moved[sequence], 0))
            for sequence, (start, end) in zip(sequences, offsets, strict=True)
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
    def segment_ids(self) -> Ids:
        """`[S]`, token types; all are the number of the text's task, if the model has tasks."""
        if self._prompt.segment is not None:
            return np.full(self.size, self._prompt.segment)
        return np.array(self._kept(self._encoding.type_ids), np.int64)

    @property
    def segment(self) -> int:
        """Token type of the first token: 0, or the number of the text's task."""
        return int(self.segment_ids[0])

    @property
    def segments(self) -> list[int]:
        """Segments of the tokens in a reply: texts with a task are of one segment."""
        segments = self.segment_ids
        return [0] * self.size if segments[0] else segments.tolist()

    @property
    def unknown(self) -> NDArray[np.bool_]:
        """`[S]`: whether a token is the unknown token; false for special tokens and prompts.

        CLIP's unknown token is the special token that ends each text, too.
        """
        own = ~np.array([*self.special_tokens_mask], bool)
        return np.isin(self.input_ids, [*self.unknown_ids]) & own

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the text or picture holds."""
        pixels = 0 if self.pixels is None else self.pixels.nbytes
        return TEXT_BYTES + self.token_bytes * self.size + pixels

    def first_pooled(self, sentence: SentenceConfig) -> int:
        """Return the index of the first pooled token, which follows an excluded prompt."""
        return 0 if sentence.include_prompt else min(self.prompt_tokens, self.size - 1)

    def in_arrays(self) -> ArrayText:
        """Return the text as arrays, which take less memory."""
        names = [each.name for each in fields(ArrayText) if each.init]
        return ArrayText(**{name: getattr(self, name) for name in names})

    def _count_prompt(self) -> int:
        """Return the number of tokens up to the prompt's last."""
        if not (self._cut and self._cut.left):
            return min(self._prompt.tokens, self.size)
        sequences = self._kept(self._encoding.sequence_ids)
        tokens = enumerate(zip(sequences, self.offsets, strict=True), 1)
        return max((n for n, (sequence, (_, end)) in tokens if sequence == end == 0), default=0)

    def _count_unknown(self) -> None:
        """Set `mostly_unknown`."""
        count, own = np.count_nonzero(self.unknown), self.size - sum(self.special_tokens_mask)
        self.mostly_unknown = bool(UNKNOWN_SHARE * count > own)


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
    special_tokens_mask: Sequence[int] = field()
    size: int = field(init=False)
    token_bytes: ClassVar[int] = 40

    def __post_init__(self) -> None:
        """Share equal names, which are most of the memory."""
        self.tokens = [*map(sys.intern, self.tokens)]
        self.special_tokens_mask = bytes(self.special_tokens_mask)
        self.size = len(self.input_ids)
        if self.unknown_ids:
            self._count_unknown()

    @property
    def offsets(self) -> list[Offset]:
        """`places` as pairs."""
        return list(zip(*self.places.T.tolist(), strict=True))

    def in_arrays(self) -> ArrayText:
        """Return the text itself."""
        return self

    def of(self, kept: slice | Sequence[int], *, cut: bool = True) -> ArrayText:
        """Return some of the tokens; the text counts as truncated if it is cut."""
        indices = range(self.size)[kept] if isinstance(kept, slice) else kept
        return replace(
            self,
            tokens=_at(indices, self.tokens),
            input_ids=self.input_ids[kept],
            segment_ids=self.segment_ids[kept],
            places=self.places[kept],
            special_tokens_mask=_at(indices, self.special_tokens_mask),
            truncated=self.truncated or cut,
        )

    def extended(self, ids: Ids, tokens: Sequence[str]) -> ArrayText:
        """Return the text with special tokens after its own."""
        more = len(ids)
        return replace(
            self,
            tokens=[*self.tokens, *tokens],
            input_ids=np.append(self.input_ids, ids),
            segment_ids=np.pad(self.segment_ids, (0, more)),
            places=np.pad(self.places, ((0, more), (0, 0))),
            special_tokens_mask=[*self.special_tokens_mask, *[1] * more],
        )


class TextTokens:
    """Text with its prompt, and its S tokens in the form of text-embeddings-inference.

    They are arrays: lists take ten times the memory. Offsets are in bytes of UTF-8.
    """

    def __init__(
        self, text: str, encoding: Encoding, ids: Sequence[int], name: Callable[[int], str | None]
    ) -> None:
        """Read an encoding, and keep no reference to it.

        Its lists of names and offsets are not read: the tokenizer makes them while it holds
        Python's global lock, 70 ms for 500,000 tokens. `name` returns the token's name of an id.
        """
        self._text = text
        self.ids = np.array(ids, np.int64)
        offsets = (encoding.token_to_chars(index) or (0, 0) for index in range(len(ids)))
        self._places = np.fromiter(chain.from_iterable(offsets), np.int32).reshape(-1, 2)
        special = [n for n, is_special in enumerate(encoding.special_tokens_mask) if is_special]
        self._special = {index: name(ids[index]) or "" for index in special}
        """Names of the special tokens that the tokenizer added, by their index."""

    @property
    def characters(self) -> int:
        """Number of characters of all pieces, which may overlap."""
        return int((self._places[:, 1] - self._places[:, 0]).sum())

    def steps(self, size: int) -> Iterator[list[dict[str, Any]]]:
        """Yield the tokens in order, at most `size` at a time.

        `text` is the token's characters in the text, or the name of a special token; `start` and
        `stop` are in bytes, and null for a special token.
        """
        points = np.frombuffer(self._text.encode("utf-32-le"), np.uint32)
        lengths = 1 + (points[:, None] >= _FIRST_OF_LENGTH).sum(axis=1)
        at, names = np.concatenate([[0], np.cumsum(lengths)]), self._special
        for first in range(0, len(self.ids), size):
            places = self._places[first : first + size]
            columns = (self.ids[first : first + size], *places.T, *at[places].T)
            rows = zip(*(column.tolist() for column in columns), strict=True)
            yield [
                {"id": token, "text": names[n], "special": True, "start": None, "stop": None}
                if n in names
                else {
                    "id": token,
                    "text": self._text[begin:end],
                    "special": False,
                    "start": start,
                    "stop": stop,
                }
                for n, (token, begin, end, start, stop) in enumerate(rows, first)
            ]
