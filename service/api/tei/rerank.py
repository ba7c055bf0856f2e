"""`POST /rerank` with `texts`: rank texts by relevance to a query, in TEI's format.

Scores come from a cross-encoder, the MaxSim of a late-interaction model, or bge-m3's hybrid score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from model.numerics.task_head import TaskConfig
from service.api.drop_in.embedding import check_given
from service.api.drop_in.ranking import Ranking, ScoreWeights, ranked, ranker
from service.api.tei.texts import TeiRequest, add_compute_headers
from service.api.wire.reserved import CHARACTER_BYTES, reserve
from service.api.wire.route import model_of
from service.inference.core import Inference

RANK_BYTES = 56
"""Predicted bytes of a result in JSON, without its text."""


class RerankRequest(TeiRequest):
    """Request body of `POST /rerank` with `texts`."""

    form_fields: ClassVar[frozenset[str]] = frozenset({"texts"})

    query: str
    texts: list[str] = Field(description="Texts to rank.")
    raw_scores: bool = Field(
        False, description="Logits without a sigmoid; MaxSim scores never get one."
    )
    weights: ScoreWeights | None = Field(
        None, description="Weights of the scores of bge-m3's three vectors; all 1 by default."
    )
    return_text: bool = Field(False, description="Whether each result includes its text.")

    @property
    def returned(self) -> list[str] | None:
        """Texts to include in the results; None to omit them."""
        return self.texts if self.return_text else None

    def check_model(self, inference: Inference) -> TaskConfig:
        """Return the model's task head: one label, or a vector for each token.

        Raises:
            NoTaskHead: the model is not a reranker.

        """
        return ranker(inference)


class Rank(BaseModel):
    """Index of a text in the request, and its score."""

    index: int
    score: float
    text: str | None = None


async def rerank(body: RerankRequest, request: Request) -> Response:
    """Rank the texts, the most relevant to the query first."""
    body.check_model(model_of(request).inference)
    pairs = [(body.query, text) for text in body.texts]
    check_given(pairs, "texts")
    size = RANK_BYTES * len(body.texts) + CHARACTER_BYTES * sum(map(len, body.returned or ()))
    with reserve(request, size) as reply:
        ranking = await ranked(
            request, body.query, body.texts, body.options(request), weights=body.weights
        )
        response = await reply.json(
            lambda: ranks(ranking, body.returned, raw=body.raw_scores), ranking.timings
        )
    return add_compute_headers(response, request, pairs)


def ranks(ranking: Ranking, texts: Sequence[str] | None, *, raw: bool) -> list[dict[str, object]]:
    """Return each text's index and score, the largest score first.

    Args:
        ranking: scores of the texts.
        texts: texts to include in the results; None to omit them.
        raw: whether to return logits.

    """
    scores = ranking.scores(raw=raw)
    return [
        {
            "index": index,
            "score": scores[index],
            **({} if texts is None else {"text": texts[index]}),
        }
        for index in ranking.order()
    ]
