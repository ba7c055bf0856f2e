"""Scores of pairs of texts, and texts ranked by them: `POST /score`, of any model.

They are a cross-encoder's probability, MaxSim of a late-interaction model, or the cosine of the
vectors of a model without a task head. Notation: B texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from headscope.call import Call, OnError, Raises, Returns
from headscope.errors import Refused
from headscope.fields import ScoreFields
from headscope.inputs import only_texts, targets_of
from headscope.joining import chained
from headscope.reading import check_count
from headscope.results import Rank

Scores = Sequence[float | Refused]
SCORE_BYTES = 64
"""About how many bytes a score has in JSON."""


@overload
def score(
    queries: str | Sequence[str],
    texts: Sequence[str],
    *,
    on_error: Raises = "raise",
    **fields: Unpack[ScoreFields],
) -> Call[Any, NDArray[np.float32]]: ...
@overload
def score(
    queries: str | Sequence[str],
    texts: Sequence[str],
    *,
    on_error: Returns,
    **fields: Unpack[ScoreFields],
) -> Call[Any, list[float | Refused]]: ...
def score(
    queries: str | Sequence[str],
    texts: Sequence[str],
    *,
    on_error: OnError = "raise",
    **fields: Unpack[ScoreFields],
) -> Call[Any, Any]:
    """Return the score of each text with a query, or with its own query, `[B]`.

    Args:
        queries: one for all texts, or a list with one a text.
        texts: what is scored.
        on_error: "return" to have a list of scores, and of errors of texts that are refused.
        fields: of `POST /score`.

    Raises:
        ValueError: there is another number of queries than of texts.

    """

    def join(parts: Sequence[Scores]) -> Any:
        found = chained(parts)
        return found if on_error == "return" else np.array(found, np.float32)

    return _scored(queries, only_texts(texts), fields, on_error, join)


@overload
def rank(
    query: str, texts: Sequence[str], *, on_error: Raises = "raise", **fields: Unpack[ScoreFields]
) -> Call[Any, list[Rank]]: ...
@overload
def rank(
    query: str, texts: Sequence[str], *, on_error: Returns, **fields: Unpack[ScoreFields]
) -> Call[Any, list[Rank | Refused]]: ...
def rank(
    query: str, texts: Sequence[str], *, on_error: OnError = "raise", **fields: Unpack[ScoreFields]
) -> Call[Any, Any]:
    """Rank texts by their scores with a query; a model of vectors ranks them by cosine.

    Args:
        query: what is looked for.
        texts: what is ranked.
        on_error: "return" to have the errors of texts that are refused after the ranks.
        fields: of `POST /score`.

    Returns:
        All texts, the largest score first; `index` is that of the list.

    """
    every = only_texts(texts)

    def join(parts: Sequence[Scores]) -> list[Rank | Refused]:
        scores = list(enumerate(chained(parts)))
        ranks = [Rank(i, one, every[i]) for i, one in scores if not isinstance(one, Refused)]
        refused = [one for _, one in scores if isinstance(one, Refused)]
        return [*sorted(ranks, key=lambda one: -one.score), *refused]

    return _scored(query, every, fields, on_error, join)


def _scored(
    queries: str | Sequence[str],
    texts: Sequence[str],
    fields: ScoreFields,
    on_error: OnError,
    join: Callable[[Sequence[Any]], Any],
) -> Call[Any, Any]:
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


def read_scores(content: bytes, texts: Sequence[Any]) -> list[float]:
    """Return the scores of a reply of /score, in the order of the texts."""
    data = json.loads(content)["data"]
    check_count(data, texts)
    scores = {one["index"]: float(one["score"]) for one in data}
    return [scores[index] for index in range(len(texts))]
