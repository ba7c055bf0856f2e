"""`POST /embed_sparse`: a weight for some words of a vocabulary, in TEI's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.drop_in.embedding import TextsOrIds, check_given
from service.api.drop_in.reserved import reserve, respond
from service.api.native.texts import check_size
from service.api.tei.errors import ERRORS
from service.api.tei.texts import TeiRequest, tell_compute
from service.api.wire.route import JsonRoute, caller_of, model_of, service_of
from service.inference.bm42.vectors import bm42_vectors, check_word_pieces, last_layer
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.tasks.task_heads import (
    SparseVector,
    required_task,
    sparse_vectors,
    task_scores,
)
from service.inference.timings import Timings
from service.scheduler.lanes import LaneName

router = APIRouter(route_class=JsonRoute, tags=["tasks"])
WEIGHT_BYTES = 4
"""Of a word of the vocabulary, before those of weight 0 are left out."""
VALUE_BYTES = 40
"""Of an index and its value in JSON."""
_SPARSE_ENCODER = "a sparse encoder (SPLADE), or ask for method bm42,"
_FEWER = "send fewer texts"
Vectors = tuple[list[SparseVector], Timings]


class EmbedSparseRequest(TeiRequest):
    """`POST /embed_sparse`."""

    inputs: TextsOrIds = Field(description="A text, token ids of one text, or a list of either.")
    prompt_name: str | None = Field(
        None, description="A prefix that the checkpoint's own configuration names."
    )
    method: Literal["bm42"] | None = Field(
        None,
        description="bm42: the words of an English text by the attention of [CLS], at hashes of "
        "their stems; the model's own sparse vectors otherwise.",
    )

    def check_model(self, inference: Inference) -> None:
        """The task head of the method; of bm42 none.

        Raises:
            NoTaskHead: the model is no sparse encoder, or has no WordPieces for bm42.

        """
        if self.method is None:
            required_task(inference.manifest, {"sparse"}, _SPARSE_ENCODER)
        else:
            check_word_pieces(inference)


class SparseValue(BaseModel):
    """A token id, or the hash of a stem, and its weight."""

    index: int
    value: float


@router.post(
    "/embed_sparse",
    response_model=None,
    responses={200: {"model": list[list[SparseValue]]}, **ERRORS},
)
async def embed_sparse(body: EmbedSparseRequest, request: Request) -> Response:
    """The words that each text is about, their indices ascending, and the weight of each."""
    vectors, timings = await (_sparse if body.method is None else _bm42)(body, request)
    size = VALUE_BYTES * sum(len(vector.indices) for vector in vectors) + 2 * len(vectors)
    with reserve(request, size) as held:
        response = await respond(held, size, lambda: values(vectors), timings)
    return tell_compute(response, request, body.inputs)


async def _sparse(body: EmbedSparseRequest, request: Request) -> Vectors:
    """The model's own vectors.

    How many weights are not 0 shows when they are there; until then whole vocabularies count.
    """
    state, inference = service_of(request), model_of(request).inference
    task = required_task(inference.manifest, {"sparse"}, _SPARSE_ENCODER)
    prepared = await _prepare(body, request, "encode")
    weights = WEIGHT_BYTES * task.outputs * len(prepared.texts)
    check_size(weights, state.settings.max_response_bytes, _FEWER, binary=True)
    with state.replies.hold(weights):
        return await sparse_vectors(await task_scores(prepared, task)), prepared.timings


async def _bm42(body: EmbedSparseRequest, request: Request) -> Vectors:
    state, inference = service_of(request), model_of(request).inference
    check_word_pieces(inference)
    prepared = await _prepare(body, request, "attention")
    tokens = sum(len(text.input_ids) for text in prepared.texts)
    check_size(VALUE_BYTES * tokens, state.settings.max_response_bytes, _FEWER, binary=True)
    stream = last_layer(inference, prepared)
    with state.replies.hold(stream.hidden_bytes):
        return await bm42_vectors(inference, prepared, stream), prepared.timings


async def _prepare(body: EmbedSparseRequest, request: Request, lane: LaneName) -> PreparedTexts:
    check_given(body.inputs, "inputs")
    inference, caller = model_of(request).inference, caller_of(request)
    options = body.options(request, body.prompt_name)
    return await inference.prepare(body.inputs, options, caller, lane)


def values(vectors: Sequence[SparseVector]) -> list[list[dict[str, Any]]]:
    """Each vector as its indices, ascending, and their values."""
    return [
        [
            {"index": index, "value": value}
            for index, value in zip(vector.indices.tolist(), vector.values, strict=True)
        ]
        for vector in vectors
    ]
