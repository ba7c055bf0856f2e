"""Why two texts are alike: the call of `POST /explain`, and its result.

Notation: S_a and S_b tokens of two texts, W_a and W_b words.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from headscope.call import FLOAT_BYTES, Call, OnError, Raises, Returns
from headscope.display import Shown, short
from headscope.errors import HeadscopeError, Refused
from headscope.explanation_view import explanation_frame, explanation_html, token_values
from headscope.fields import TextFields
from headscope.inputs import Text, texts_of
from headscope.joining import chained
from headscope.reading import check_count
from headscope.results import TokenizedText
from headscope.service_results import Info
from headscope.words import Word

if TYPE_CHECKING:
    from pandas import DataFrame

JSON_BYTES = 15
Method = Literal["pairs", "decomposition"]


class ExplainFields(TextFields, total=False):
    """`POST /explain`."""

    include: Sequence[Literal["pairs", "occlusion", "decomposition", "heads", "matches"]] | None
    layer: int
    pooling: Literal["mean", "cls", "max", "last"] | None
    spans: Literal["tokens", "words", "sentences"] | None
    top: int | None


@dataclass(frozen=True)
class OccludedSpan:
    """A word or sentence that is left out as a whole."""

    start: int
    """Code points of the text before it."""
    end: int
    tokens: tuple[int, ...]
    """Indices of its tokens."""


@dataclass(frozen=True, repr=False)
class WordPair(Shown):
    """A word of each text, and their share of the similarity."""

    one: Word
    other: Word
    share: float

    def _facts(self) -> list[str]:
        return [short(self.one.text), short(self.other.text), f"share={self.share:.4f}"]


@dataclass(frozen=True)
class TokenMatch:
    """A product that is part of the similarity: of a token of each text, by their indices."""

    query: int
    document: int
    score: float
    token_id: int | None = None
    """The word of the vocabulary, of a sparse encoder."""


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Shown):
    """Why two texts are alike; None what was not asked for."""

    model: str
    backend: str
    similarity: float
    texts: tuple[TokenizedText, TokenizedText]
    pairs: NDArray[np.float32] | None = None
    """`[S_a, S_b]`, which sum to the similarity up to `completeness_error`."""
    completeness_error: float | None = None
    occlusion: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
    """`[S_a]` and `[S_b]`, or as many as `spans`: the similarity less the one without that token or
    span; NaN where it is not computed."""
    decomposition: NDArray[np.float32] | None = None
    """`[S_a, S_b]` of input tokens, which sum to the similarity up to `decomposition_error`."""
    decomposition_error: float | None = None
    agreement: dict[str, float | None] | None = None
    """Spearman of each method's row and column sums with `occlusion`."""
    matches: tuple[TokenMatch, ...] | None = None
    heads: NDArray[np.float32] | None = None
    """`[layers, heads]`: the similarity less the one with that head switched off in both texts;
    NaN where it is not computed."""
    spans: tuple[tuple[OccludedSpan, ...], tuple[OccludedSpan, ...]] | None = None
    """The spans of `occlusion`, where they are not single tokens."""
    partial: bool = False
    """Whether the deadline came before all of occlusion, decomposition and heads was computed."""
    computed: dict[str, int] | None = None
    """Number of values of `occlusion` and `heads`, and of decompositions, that were computed."""

    def shares(self, method: Method = "pairs") -> NDArray[np.float32]:
        """The shares of words, `[W_a, W_b]`, with the sum of those of tokens.

        Raises:
            HeadscopeError: the reply does not have that method.

        """
        found = self.pairs if method == "pairs" else self.decomposition
        if found is None:
            if self.computed and method in self.computed:
                raise HeadscopeError(f"the deadline came before the {method}: ask for less")
            raise HeadscopeError(f'the reply has no {method}: ask for it (include "{method}")')
        one, other = (_membership(text.words, len(text.tokens)) for text in self.texts)
        return np.linalg.multi_dot([one, found, other.T]).astype(np.float32)

    def top_pairs(self, n: int = 10, method: Method = "pairs") -> list[WordPair]:
        """The n pairs of words with the largest shares; special tokens are no words.

        Raises:
            HeadscopeError: the reply does not have that method.

        """
        shares, (one, other) = self.shares(method), self.texts
        pairs = (
            WordPair(a, b, float(shares[i, j]))
            for i, a in enumerate(one.words)
            for j, b in enumerate(other.words)
            if not (a.special or b.special)
        )
        return heapq.nlargest(n, pairs, key=lambda pair: pair.share)

    def to_pandas(self) -> DataFrame:
        """Return a row a token of both texts, with a column for each method of the reply.

        `pairs` and `decomposition` are the sums of a token's shares, which its words' sums follow.

        Raises:
            ImportError: pandas is not installed.

        """
        return explanation_frame(self)

    def _facts(self) -> list[str]:
        texts = [short(text) for each in self.texts for text in each.texts]
        heads = [] if self.heads is None else ["heads"]
        return [*texts, f"similarity={self.similarity:.4f}", *token_values(self), *heads]

    def _repr_html_(self) -> str:
        return explanation_html(self)


@overload
def explain(
    inputs: Sequence[Sequence[str]], *, on_error: Raises = "raise", **fields: Unpack[ExplainFields]
) -> Call[Any, list[Explanation]]: ...
@overload
def explain(
    inputs: Sequence[Sequence[str]], *, on_error: Returns, **fields: Unpack[ExplainFields]
) -> Call[Any, list[Explanation | Refused]]: ...
def explain(
    inputs: Sequence[Sequence[str]], *, on_error: OnError = "raise", **fields: Unpack[ExplainFields]
) -> Call[Any, Any]:
    """Why the texts of each pair are alike: shares of tokens, and what each token is worth.

    Args:
        inputs: a list of pairs of texts.
        on_error: "return" to have the error of an input that is refused in its place.
        fields: of `POST /explain`.

    Returns:
        An explanation a pair, in their order.

    Raises:
        TypeError: something is no pair.

    """
    pairs = texts_of(inputs)
    if pairs and isinstance(pairs[0], str):
        raise TypeError("inputs[0] is a text: a list of pairs is needed")
    included = fields.get("include") or ("pairs",)
    matrices = sum(name in included for name in ("pairs", "decomposition"))

    def weigh(tokens: int, info: Info) -> int:
        heads = (info.layers or 0) * (info.heads or 0) * ("heads" in included)
        return JSON_BYTES * (tokens * max(FLOAT_BYTES, tokens * matrices // 4) + heads)

    return Call(
        "/explain",
        pairs,
        {**fields},
        read_explanations,
        chained,
        weigh=weigh,
        on_error=on_error,
    )


def read_explanations(content: bytes, pairs: Sequence[Text]) -> list[Explanation]:
    """The JSON form of /explain, an explanation a pair."""
    reply = json.loads(content)
    check_count(reply["results"], pairs)
    return [
        _explanation(found, reply["model"], reply["backend"], tuple(pair))
        for found, pair in zip(reply["results"], pairs, strict=True)
    ]


def _explanation(
    found: dict[str, Any], model: str, backend: str, pair: tuple[str, ...]
) -> Explanation:
    one, other = (
        TokenizedText(
            model=model,
            backend=backend,
            texts=(text,),
            tokens=told["tokens"],
            token_ids=told["token_ids"],
            segment_ids=[0] * len(told["tokens"]),
            offsets=[(start, end) for start, end in told["offsets"]],
            truncated=told["truncated"],
        )
        for text, told in zip(pair, found["texts"], strict=True)
    )
    occlusion, matches, heads = (found.get(name) for name in ("occlusion", "matches", "heads"))
    spans = found.get("spans")
    return Explanation(
        model,
        backend,
        found["similarity"],
        (one, other),
        _matrix(found.get("pairs"), one, other),
        found.get("completeness_error"),
        None if occlusion is None else (_floats(occlusion[0]), _floats(occlusion[1])),
        _matrix(found.get("decomposition"), one, other),
        found.get("decomposition_error"),
        found.get("agreement"),
        None if matches is None else tuple(TokenMatch(**match) for match in matches),
        None if heads is None else _floats(heads),
        None if spans is None else (_spans(spans[0]), _spans(spans[1])),
        found.get("partial", False),
        found.get("computed"),
    )


def _spans(spans: Any) -> tuple[OccludedSpan, ...]:
    return tuple(OccludedSpan(one["start"], one["end"], tuple(one["tokens"])) for one in spans)


def _floats(values: Any) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def _matrix(values: Any, one: TokenizedText, other: TokenizedText) -> NDArray[np.float32] | None:
    if values is None:
        return None
    return np.array(values, np.float32).reshape(len(one.tokens), len(other.tokens))


def _membership(words: Sequence[Word], tokens: int) -> NDArray[np.float32]:
    """`[W, S]`, 1 where a word has a token."""
    member = np.zeros((len(words), tokens), np.float32)
    for row, word in zip(member, words, strict=True):
        row[word.tokens] = 1
    return member
