"""`POST /similarity`: cosine similarities of a sentence with others, in TEI's format."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from model.numerics.pooling import l2_normalize
from service.api.drop_in.embedding import Embedding, check_embedder, check_given, prepare_embedding
from service.api.drop_in.ranking import ScoreWeights, weighted_task
from service.api.native.texts import LenientRequest
from service.api.tei.errors import ERRORS
from service.api.tei.texts import TeiRequest, add_compute_headers
from service.api.wire.reserved import reserve
from service.api.wire.route import JsonRoute, model_of
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
async def similarity(body: SimilarityRequest, request: Request) -> Response:
    """Return the cosine, or hybrid score, of each of `sentences` with `source_sentence`."""
    body.check_model(model_of(request).inference)
    texts, parameters = body.inputs.texts, body.parameters or SimilarityParameters()
    check_given([body.inputs.source_sentence], "inputs.source_sentence")
    check_given(body.inputs.sentences, "inputs.sentences")
    options = parameters.options(request, parameters.prompt_name, _NAMING)
    prepared = await prepare_embedding(request, Embedding(texts, options, normalize=False))
    size = FLOAT_BYTES * prepared.floats + SCORE_BYTES * len(texts)
    if parameters.weights is not None:
        task = weighted_task(prepared.inference)
        size += vector_bytes(prepared.inference, prepared.texts, task)
    with reserve(request, size) as reply:
        if parameters.weights is not None:
            wanted = prepared.texts, task, parameters.weights.hybrid
            scores = np.concatenate(await hybrid_scores(prepared.inference, *wanted))
        else:
            scores = await asyncio.to_thread(cosines, await prepared.vectors())
        response = await reply.json(lambda: scores, prepared.timings)
    return add_compute_headers(response, request, texts)


def cosines(vectors: Sequence[Floats]) -> Floats:
    """Return the cosine of the first vector with each of the others."""
    source, *others = (l2_normalize(vector) for vector in vectors)
    return np.array([np.dot(source, other) for other in others], np.float32)
