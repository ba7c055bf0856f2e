"""`POST /rerank` with `texts`: texts by their scores with a query, in TEI's form.

They are those of a cross-encoder, or the MaxSim of a late-interaction model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from model.artifact.task import TaskConfig
from service.api.drop_in.embedding import check_given
from service.api.drop_in.ranking import Ranking, ranked, ranker
from service.api.drop_in.reserved import CHARACTER_BYTES, reserve, respond
from service.api.tei.texts import TeiRequest, tell_compute
from service.api.wire.route import model_of
from service.inference.core import Inference

RANK_BYTES = 56
"""Of a text's rank in JSON, without the text."""


class RerankRequest(TeiRequest):
    """`POST /rerank` with `texts`."""

    form_fields: ClassVar[frozenset[str]] = frozenset({"texts"})

    query: str
    texts: list[str] = Field(description="What is ranked.")
    raw_scores: bool = Field(
        False, description="Logits, without sigmoid; MaxSim is given as it is in any case."
    )
    return_text: bool = Field(False, description="Whether each rank has its text.")

    @property
    def returned(self) -> list[str] | None:
        """The texts that the reply repeats; none when None."""
        return self.texts if self.return_text else None

    def check_model(self, inference: Inference) -> TaskConfig:
        """The task head: one label, or a vector a token.

        Raises:
            NoTaskHead: the model ranks nothing.

        """
        return ranker(inference)


class Rank(BaseModel):
    """A text's number in the request, and its score."""

    index: int
    score: float
    text: str | None = None


async def rerank(body: RerankRequest, request: Request) -> Response:
    """The texts, the most relevant to the query first."""
    body.check_model(model_of(request).inference)
    pairs = [(body.query, text) for text in body.texts]
    check_given(pairs, "texts")
    size = RANK_BYTES * len(body.texts) + CHARACTER_BYTES * sum(map(len, body.returned or ()))
    with reserve(request, size) as held:
        ranking = await ranked(request, body.query, body.texts, body.options(request))
        response = await respond(
            held, size, lambda: ranks(ranking, body.returned, raw=body.raw_scores), ranking.timings
        )
    return tell_compute(response, request, pairs)


def ranks(ranking: Ranking, texts: Sequence[str] | None, *, raw: bool) -> list[dict[str, Any]]:
    """Each text's number and score, the largest first.

    Args:
        ranking: of the texts.
        texts: that the reply repeats; none when None.
        raw: whether the scores are the logits.

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
