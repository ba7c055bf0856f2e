"""Scores of pairs of texts, and texts ranked by them: `POST /score`, for any model.

A score is a cross-encoder's probability, a late-interaction model's MaxSim, or the cosine of the
vectors of a model without a task head. Notation: B texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Unpack, overload

import numpy as np
from numpy.typing import NDArray

from headscope.call import Call, CallFor, OnError, Raises, Returns, chained
from headscope.errors import Refused
from headscope.fields import ScoreFields
from headscope.inputs import only_texts, targets_of
from headscope.reading import check_count
from headscope.results import Rank

Scores = Sequence[float | Refused]
SCORE_BYTES = 64
"""Estimated size of a score in JSON, in bytes."""


@overload
def score(
    queries: str | Sequence[str],
    texts: Sequence[str],
    *,
    on_error: Raises = "raise",
    **fields: Unpack[ScoreFields],
) -> CallFor[NDArray[np.float32]]: ...
@overload
def score(
    queries: str | Sequence[str],
    texts: Sequence[str],
    *,
    on_error: Returns,
    **fields: Unpack[ScoreFields],
) -> CallFor[list[float | Refused]]: ...
def score(
    queries: str | Sequence[str],
    texts: Sequence[str],
    *,
    on_error: OnError = "raise",
    **fields: Unpack[ScoreFields],
) -> CallFor[object]:
    """Return the score of each text with a query, or with its own query, `[B]`.

    Args:
        queries: one query for all texts, or a list with one query per text.
        texts: the texts to score.
        on_error: "return" to get a list of scores, and errors of refused texts.
        fields: further fields of `POST /score`.

    Raises:
        ValueError: the numbers of queries and texts differ.

    """

    def join(parts: Sequence[Scores]) -> object:
        scores = chained(parts)
        return scores if on_error == "return" else np.array(scores, np.float32)

    return _scored(queries, only_texts(texts), fields, on_error, join)


@overload
def rank(
    query: str, texts: Sequence[str], *, on_error: Raises = "raise", **fields: Unpack[ScoreFields]
) -> CallFor[list[Rank]]: ...
@overload
def rank(
    query: str, texts: Sequence[str], *, on_error: Returns, **fields: Unpack[ScoreFields]
) -> CallFor[list[Rank | Refused]]: ...
def rank(
    query: str, texts: Sequence[str], *, on_error: OnError = "raise", **fields: Unpack[ScoreFields]
) -> CallFor[object]:
    """Rank texts by their scores with a query; a model of vectors ranks them by cosine.

    Args:
        query: the query.
        texts: the texts to rank.
        on_error: "return" to get the errors of refused texts after the ranks.
        fields: further fields of `POST /score`.

    Returns:
        All texts, the largest score first; `index` is the index in the list.

    """
    checked = only_texts(texts)

    def join(parts: Sequence[Scores]) -> list[Rank | Refused]:
        scores = list(enumerate(chained(parts)))
        ranks = [Rank(i, s, checked[i]) for i, s in scores if not isinstance(s, Refused)]
        refused = [error for _, error in scores if isinstance(error, Refused)]
        return [*sorted(ranks, key=lambda ranked: -ranked.score), *refused]

    return _scored(query, checked, fields, on_error, join)


def _scored(
    queries: str | Sequence[str],
    texts: Sequence[str],
    fields: ScoreFields,
    on_error: OnError,
    join: Callable[[Sequence[Scores]], object],
) -> CallFor[object]:
    """Return a call of /score."""
    query = queries if isinstance(queries, str) else None
    return Call(
        "/score",
        texts,
        {**fields} if query is None else {**fields, "text_1": query},
        read_scores,
        join,
        name="text_2",
        shared=query or "",
        targets=targets_of(queries, texts, "queries") if query is None else (),
        targets_name="text_1",
        weigh=lambda *_: SCORE_BYTES,
        on_error=on_error,
    )


def read_scores(content: bytes, texts: Sequence[object]) -> list[float]:
    """Parse the scores of a reply of /score, in the order of the texts."""
    data = json.loads(content)["data"]
    check_count(data, texts)
    scores = {item["index"]: float(item["score"]) for item in data}
    return [scores[index] for index in range(len(texts))]
