"""Inputs of a head's weights: the call of `POST /attention/scores`, and its result.

Notation: S tokens of a text, Q queries and K keys of them, p features of a head.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from headscope.call import Call, CallFor, OnError, Raises, Returns, chained
from headscope.display import HeatMap, shape_of
from headscope.errors import HeadscopeError, Refused
from headscope.fields import HeadScoresFields
from headscope.inputs import Text, texts_of
from headscope.reading import check_count
from headscope.results import TokenizedText
from headscope.service_results import Info

if TYPE_CHECKING:
    from pandas import DataFrame

JSON_BYTES = 15


@dataclass(frozen=True, eq=False, repr=False)
class HeadScores(TokenizedText):
    """Queries and keys of one head, and the scores that its weights follow from."""

    layer: int
    head: int
    scale: float | None
    """Factor of each product of features in a score; None if scores are not sums of products."""
    queries: list[int]
    """Index of the token of each row."""
    keys: list[int]
    """Index of the token of each column."""
    query_vectors: NDArray[np.float32]
    """`[Q, p]`."""
    key_vectors: NDArray[np.float32]
    """`[K, p]`."""
    scores: NDArray[np.float32]
    """`[Q, K]`."""
    weights: NDArray[np.float32]
    """`[Q, K]`; a row with all keys sums to 1."""

    @property
    def products(self) -> NDArray[np.float32]:
        """Contribution of each feature to each score, `[Q, K, p]`, without relative positions.

        Raises:
            HeadscopeError: the scores of this model are not sums of products.

        """
        if self.scale is None:
            raise HeadscopeError("the scores of this model are not sums of products of features")
        products = self.query_vectors[:, None] * self.key_vectors
        return products * np.float32(self.scale)

    def heat_map(self) -> HeatMap:
        """Return the map of the head's weights, as a notebook shows it."""
        queries, keys = (
            tuple(self.tokens[token] for token in axis) for axis in (self.queries, self.keys)
        )
        return HeatMap(f"layer {self.layer}, head {self.head}", queries, self.weights, keys)

    def to_pandas(self, values: Literal["scores", "weights"] = "scores") -> DataFrame:
        """Return a table of the scores or of the weights, queries × keys.

        Raises:
            ImportError: pandas is not installed.

        """
        return replace(self.heat_map(), weights=getattr(self, values)).to_pandas()

    def _facts(self) -> list[str]:
        head = f"layer {self.layer}, head {self.head}"
        return [*super()._facts(), head, shape_of("scores", self.scores.shape)]

    def _repr_html_(self) -> str:
        return self.heat_map().html(f"{self.model} ({self.backend}), {len(self.tokens)} tokens")


@overload
def head_scores(
    inputs: str | Sequence[Text], *, on_error: Raises = "raise", **fields: Unpack[HeadScoresFields]
) -> CallFor[list[HeadScores]]: ...
@overload
def head_scores(
    inputs: str | Sequence[Text], *, on_error: Returns, **fields: Unpack[HeadScoresFields]
) -> CallFor[list[HeadScores | Refused]]: ...
def head_scores(
    inputs: str | Sequence[Text], *, on_error: OnError = "raise", **fields: Unpack[HeadScoresFields]
) -> CallFor[object]:
    """Return the queries, keys and scores of one head.

    Args:
        inputs: a text, a list of texts, or a list of pairs.
        on_error: "return" to get the error of a refused input in the input's place.
        fields: further fields of `POST /attention/scores`; `layer` and `head` are required.

    Returns:
        One result per text, in order.

    """

    def weigh(tokens: int, info: Info) -> int:
        size = (info.hidden_size or 0) // max(info.heads or 0, 1)
        rows, columns = (
            tokens if chosen is None else len(chosen)
            for chosen in (fields.get("queries"), fields.get("keys"))
        )
        return JSON_BYTES * ((rows + columns) * size + 2 * rows * columns)

    return Call(
        "/attention/scores",
        texts_of(inputs),
        {**fields},
        read_head_scores,
        chained,
        weigh=weigh,
        on_error=on_error,
    )


def read_head_scores(content: bytes, texts: Sequence[Text]) -> list[HeadScores]:
    """Parse the reply of /attention/scores: one result per text."""
    reply = json.loads(content)
    named = {name: reply[name] for name in ("model", "backend", "layer", "head", "scale")}
    check_count(reply["results"], texts)
    return [_read(named, *pair) for pair in zip(reply["results"], texts, strict=True)]


def _read(named: dict[str, Any], result: dict[str, Any], text: Text) -> HeadScores:
    all_tokens = list(range(len(result["tokens"])))
    queries, keys = (result.get(axis, all_tokens) for axis in ("queries", "keys"))
    shape = len(queries), len(keys)
    plain = ("tokens", "token_ids", "segment_ids", "truncated")
    return HeadScores(
        **named,
        **{name: result[name] for name in plain},
        texts=(text,) if isinstance(text, str) else tuple(text),
        offsets=[(start, end) for start, end in result["offsets"]],
        queries=queries,
        keys=keys,
        query_vectors=np.array(result["query_vectors"], np.float32).reshape(len(queries), -1),
        key_vectors=np.array(result["key_vectors"], np.float32).reshape(len(keys), -1),
        scores=np.array(result["scores"], np.float32).reshape(shape),
        weights=np.array(result["weights"], np.float32).reshape(shape),
    )
