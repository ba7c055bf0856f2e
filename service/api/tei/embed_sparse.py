"""`POST /embed_sparse`: sparse vectors over a vocabulary, in TEI's format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from model.numerics.task_head import TaskKind
from service.api.drop_in.embedding import TextsOrIds, check_given
from service.api.native.vector_outputs import WEIGHT_BYTES, head_bytes
from service.api.tei.texts import ERRORS, TeiRequest, add_compute_headers
from service.api.wire.reserved import FEWER_TEXTS, check_size, hold, reserve
from service.api.wire.route import JsonRoute, caller_of, model_of, service_of
from service.inference.bm42 import bm42_vectors, check_word_pieces, last_layer
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions, PreparedTexts
from service.inference.head_vectors import HeadVectors, SparseVector
from service.inference.tasks.task_heads import required_task
from service.inference.timings import Timings
from service.scheduler.lanes import LaneName
from service.scheduler.outputs import requested

router = APIRouter(route_class=JsonRoute, tags=["tasks"])
VALUE_BYTES = 40
"""Predicted bytes of an index and its value in JSON."""
SPARSE_KINDS: tuple[TaskKind, ...] = ("sparse", "hybrid")
_SPARSE_ENCODER = "a sparse encoder (SPLADE), or ask for method bm42,"
Vectors = tuple[list[SparseVector], Timings]


class EmbedSparseRequest(TeiRequest):
    """Request body of `POST /embed_sparse`."""

    inputs: TextsOrIds = Field(description="A text, token ids of one text, or a list of either.")
    prompt_name: str | None = Field(
        None, description="Name of a prompt in the checkpoint's configuration."
    )
    method: Literal["bm42"] | None = Field(
        None,
        description="bm42: words of an English text, weighted by the attention of [CLS] and "
        "indexed by hashes of their stems; by default the model's sparse vectors.",
    )

    def check_model(self, inference: Inference) -> None:
        """Check that the model supports the method."""
        if self.method is None:
            required_task(inference.manifest, SPARSE_KINDS, _SPARSE_ENCODER)
        else:
            check_word_pieces(inference)


class SparseValue(BaseModel):
    """Token id or hash of a stem, and its weight."""

    index: int
    value: float


@router.post(
    "/embed_sparse",
    response_model=None,
    responses={200: {"model": list[list[SparseValue]]}, **ERRORS},
)
async def embed_sparse(body: EmbedSparseRequest, request: Request) -> Response:
    """Return a sparse vector of each text, with ascending indices."""
    vectors, timings = await (_sparse if body.method is None else _bm42)(body, request)
    size = VALUE_BYTES * sum(len(vector.indices) for vector in vectors) + 2 * len(vectors)
    with reserve(request, size) as reply:
        response = await reply.json(lambda: values(vectors), timings)
    return add_compute_headers(response, request, body.inputs)


async def _sparse(body: EmbedSparseRequest, request: Request) -> Vectors:
    """Compute the model's sparse vectors.

    The number of non-zero weights is unknown before, so the bytes of whole vocabularies are
    reserved.
    """
    inference = model_of(request).inference
    task = required_task(inference.manifest, SPARSE_KINDS, _SPARSE_ENCODER)
    prepared = await _prepare(body, request, "encode")
    head = HeadVectors(task, ("sparse",))
    wanted = EncodeOptions(
        inference.config.num_hidden_layers,
        tokens=False,
        pooled=False,
        head=head,
    )
    with hold(request, head_bytes(head, prepared.texts, WEIGHT_BYTES)):
        encodings = await inference.encode(prepared, wanted)
    return [requested(encoding.sparse) for encoding in encodings], prepared.timings


async def _bm42(body: EmbedSparseRequest, request: Request) -> Vectors:
    state, inference = service_of(request), model_of(request).inference
    check_word_pieces(inference)
    prepared = await _prepare(body, request, "attention")
    tokens = sum(len(text.input_ids) for text in prepared.texts)
    check_size(VALUE_BYTES * tokens, state.settings.max_response_bytes, FEWER_TEXTS, binary=True)
    stream = last_layer(inference, prepared)
    with state.replies.hold(stream.hidden_bytes):
        return await bm42_vectors(inference, prepared, stream), prepared.timings


async def _prepare(body: EmbedSparseRequest, request: Request, lane: LaneName) -> PreparedTexts:
    check_given(body.inputs, "inputs")
    inference, caller = model_of(request).inference, caller_of(request)
    options = body.options(request, body.prompt_name)
    return await inference.prepare(body.inputs, options, caller, lane)


def values(vectors: Sequence[SparseVector]) -> list[list[dict[str, object]]]:
    """Return each vector as a list of indices, ascending, and their values."""
    return [
        [
            {"index": index, "value": value}
            for index, value in zip(vector.indices.tolist(), vector.values, strict=True)
        ]
        for vector in vectors
    ]
