"""`POST /rerank` with `texts`, and `/similarity`: scores of texts with a query, in TEI's format.

Scores come from a cross-encoder, the MaxSim of a late-interaction model, or bge-m3's hybrid score.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from model.numerics.pooling import l2_normalize
from model.numerics.task_head import TaskConfig
from service.api.drop_in.embedding import Embedding, check_embedder, check_given, prepare_embedding
from service.api.drop_in.ranking import Ranking, ScoreWeights, ranked, ranker, weighted_task
from service.api.native.texts import LenientRequest
from service.api.tei.texts import ERRORS, TeiRequest, add_compute_headers
from service.api.wire.route import (
    CHARACTER_BYTES,
    ApiExchange,
    JsonRoute,
    json_reply,
    reserve,
)
from service.engines.contract import Floats
from service.inference.core import Inference
from service.inference.tasks.hybrid import hybrid_scores, vector_bytes

router = APIRouter(route_class=JsonRoute, tags=["tei"])
FLOAT_BYTES = 4
SCORE_BYTES = 24
_NAMING = "text {} (0 is source_sentence, the others are sentences)"


class SimilarityInput(BaseModel):
    """Source sentence, and the sentences to compare with it."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    source_sentence: str
    sentences: list[str]

    @property
    def texts(self) -> list[str]:
        """Source sentence, followed by the other sentences."""
        return [self.source_sentence, *self.sentences]


class SimilarityParameters(TeiRequest):
    """Tokenisation options of the sentences."""

    prompt_name: str | None = Field(
        None, description="Name of a prompt in the checkpoint's configuration."
    )

    weights: ScoreWeights | None = Field(
        None,
        description="Weights of the scores of bge-m3's three vectors, in place of the cosine.",
    )


class SimilarityRequest(LenientRequest):
    """Request body of `POST /similarity`."""

    inputs: SimilarityInput
    parameters: SimilarityParameters | None = None

    def check_model(self, inference: Inference) -> None:
        """Check that the model embeds texts."""
        check_embedder(inference)


@router.post("/similarity", response_model=None, responses={200: {"model": list[float]}, **ERRORS})
async def similarity(body: SimilarityRequest, exchange: ApiExchange) -> Response:
    """Return the cosine, or hybrid score, of each of `sentences` with `source_sentence`."""
    body.check_model(exchange.model.inference)
    texts, parameters = body.inputs.texts, body.parameters or SimilarityParameters()
    check_given([body.inputs.source_sentence], "inputs.source_sentence")
    check_given(body.inputs.sentences, "inputs.sentences")
    options = parameters.options(exchange, parameters.prompt_name, _NAMING)
    prepared = await prepare_embedding(exchange, Embedding(texts, options, normalize=False))
    size = prepared.nbytes(FLOAT_BYTES) + SCORE_BYTES * len(texts)
    if parameters.weights is not None:
        task = weighted_task(prepared.inference)
        size += vector_bytes(prepared.inference, prepared.texts, task)
    reserve(exchange, size)
    if parameters.weights is not None:
        wanted = prepared.texts, task, parameters.weights.hybrid
        scores = np.concatenate(await hybrid_scores(prepared.inference, *wanted))
    else:
        scores = await asyncio.to_thread(cosines, await prepared.vectors())
    response = await json_reply(exchange, lambda: scores, prepared.timings)
    return add_compute_headers(response, exchange, texts)


def cosines(vectors: Sequence[Floats]) -> Floats:
    """Return the cosine of the first vector with each of the others."""
    source, *others = (l2_normalize(vector) for vector in vectors)
    return np.array([np.dot(source, other) for other in others], np.float32)


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


async def rerank(body: RerankRequest, exchange: ApiExchange) -> Response:
    """Rank the texts, the most relevant to the query first."""
    body.check_model(exchange.model.inference)
    pairs = [(body.query, text) for text in body.texts]
    check_given(pairs, "texts")
    size = RANK_BYTES * len(body.texts) + CHARACTER_BYTES * sum(map(len, body.returned or ()))
    reserve(exchange, size)
    ranking = await ranked(
        exchange, body.query, body.texts, body.options(exchange), weights=body.weights
    )
    response = await json_reply(
        exchange, lambda: ranks(ranking, body.returned, raw=body.raw_scores), ranking.timings
    )
    return add_compute_headers(response, exchange, pairs)


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
