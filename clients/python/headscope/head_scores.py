"""What a head compares to come to its weights: `POST /attention/scores`, and its result.

Notation: S tokens of a text, Q queries and K keys of them, p features of a head.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from headscope.call import Call, OnError, Raises, Returns
from headscope.display import shape_of
from headscope.errors import HeadscopeError, Refused
from headscope.fields import HeadScoresFields
from headscope.heat_map import HeatMap
from headscope.inputs import Text, texts_of
from headscope.joining import chained
from headscope.reading import check_count
from headscope.results import TokenizedText
from headscope.service_results import Info

if TYPE_CHECKING:
    from pandas import DataFrame

JSON_BYTES = 15


@dataclass(frozen=True, eq=False, repr=False)
class HeadScores(TokenizedText):
    """The queries and keys of one head, and the scores that its weights are made of."""

    layer: int
    head: int
    scale: float | None
    """Of each product of features in a score; None where a score is no sum of products."""
    queries: list[int]
    """Of which token each row is."""
    keys: list[int]
    """Of which token each column is."""
    query_vectors: NDArray[np.float32]
    """`[Q, p]`."""
    key_vectors: NDArray[np.float32]
    """`[K, p]`."""
    scores: NDArray[np.float32]
    """`[Q, K]`."""
    weights: NDArray[np.float32]
    """`[Q, K]`; a row of all keys sums to 1."""

    @property
    def products(self) -> NDArray[np.float32]:
        """What each feature adds to each score, `[Q, K, p]`; relative positions add to their sum.

        Raises:
            HeadscopeError: the scores of this model are no sums of products.

        """
        if self.scale is None:
            raise HeadscopeError("the scores of this model are no sums of products of features")
        products = self.query_vectors[:, None] * self.key_vectors
        return products * np.float32(self.scale)

    def heat_map(self) -> HeatMap:
        """Return the map of the head's weights, which a notebook shows."""
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
) -> Call[Any, list[HeadScores]]: ...
@overload
def head_scores(
    inputs: str | Sequence[Text], *, on_error: Returns, **fields: Unpack[HeadScoresFields]
) -> Call[Any, list[HeadScores | Refused]]: ...
def head_scores(
    inputs: str | Sequence[Text], *, on_error: OnError = "raise", **fields: Unpack[HeadScoresFields]
) -> Call[Any, Any]:
    """The queries, keys and scores of one head.

    Args:
        inputs: a text, a list of texts, or a list of pairs.
        on_error: "return" to have the error of an input that is refused in its place.
        fields: of `POST /attention/scores`; `layer` and `head` are needed.

    Returns:
        What the head compares in each text, in their order.

    """

    def weigh(tokens: int, info: Info) -> int:
        size = (info.hidden_size or 0) // max(info.heads or 0, 1)
        rows, columns = (
            tokens if asked is None else len(asked)
            for asked in (fields.get("queries"), fields.get("keys"))
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
    """The reply of /attention/scores, a result a text."""
    told = json.loads(content)
    named = {name: told[name] for name in ("model", "backend", "layer", "head", "scale")}
    check_count(told["results"], texts)
    return [_read(named, *each) for each in zip(told["results"], texts, strict=True)]


def _read(named: dict[str, Any], found: dict[str, Any], text: Text) -> HeadScores:
    every = list(range(len(found["tokens"])))
    queries, keys = (found.get(axis, every) for axis in ("queries", "keys"))
    shape = len(queries), len(keys)
    plain = ("tokens", "token_ids", "segment_ids", "truncated")
    return HeadScores(
        **named,
        **{name: found[name] for name in plain},
        texts=(text,) if isinstance(text, str) else tuple(text),
        offsets=[(start, end) for start, end in found["offsets"]],
        queries=queries,
        keys=keys,
        query_vectors=np.array(found["query_vectors"], np.float32).reshape(len(queries), -1),
        key_vectors=np.array(found["key_vectors"], np.float32).reshape(len(keys), -1),
        scores=np.array(found["scores"], np.float32).reshape(shape),
        weights=np.array(found["weights"], np.float32).reshape(shape),
    )
