"""`POST /embed`, `/embed_all` and `/embed_sparse`: vectors of texts and of their tokens.

Fields, headers and errors of all routes in text-embeddings-inference's format.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import orjson
from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from model.numerics.task_head import TaskKind
from service.api.drop_in.embedding import (
    ListForm,
    TextsOrIds,
    answer,
    check_embedder,
    check_given,
    prepare_embedding,
)
from service.api.requests import LenientRequest
from service.api.wire.replies import error_reply, problems_in_form, replies
from service.api.wire.route import (
    FEWER_TEXTS,
    ApiExchange,
    JsonRoute,
    caller_of,
    check_size,
    json_reply,
    reserve,
)
from service.api.wire.schemas import named
from service.errors import NoTaskHead, ServiceError, Unauthorized
from service.inference.bm42 import bm42_vectors, check_word_pieces, last_layer
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions, PreparedTexts
from service.inference.outputs.task_head import WEIGHT_BYTES, SparseVector
from service.inference.tasks.task_heads import required_task
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Input, characters
from service.inference.tokenization.tokenizer import Options
from service.inference.tokenization.truncation import Direction
from service.scheduler.lanes import LaneName


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error; the body is empty if the API key is wrong, as in TEI."""
    body = {"error": error.detail, "error_type": error.error_type}
    content = b"" if error.status == Unauthorized.status else orjson.dumps(body)
    return error_reply(error, content, "application/json")


_ERROR_TYPE = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]
ERRORS = problems_in_form(named("TeiError", {"error": str, "error_type": _ERROR_TYPE}))
ERRORS[NoTaskHead.status] = ERRORS[404] | {"description": "The model has no such task head"}
del ERRORS[Unauthorized.status]["content"]
"""Error replies of a route, for the OpenAPI document."""


class TeiRequest(LenientRequest):
    """Fields of every request with texts to encode."""

    truncate: bool | None = Field(
        None,
        description="Truncate long texts instead of rejecting them; by default the service's "
        "setting `auto_truncate`.",
    )
    truncation_direction: Literal["Left", "Right", "left", "right"] = Field(
        "Right", description="Side to cut."
    )

    def options(
        self, exchange: ApiExchange, prompt_name: str | None = None, naming: str = "inputs[{}]"
    ) -> Options:
        """Return the tokenisation options of the texts."""
        truncate = self.truncate
        if truncate is None:
            truncate = exchange.service.settings.auto_truncate
        direction: Direction = "left" if self.truncation_direction in ("Left", "left") else "right"
        return Options(truncate, direction, prompt_name, naming=naming)


def add_compute_headers(
    response: Response, exchange: ApiExchange, inputs: Sequence[Input]
) -> Response:
    """Add TEI's headers of device, time and characters to a response, and return it.

    Token ids count as characters, as in TEI.
    """
    provider = exchange.model.inference.engines.default.engine.provider
    device = "gpu" if "CUDA" in provider else "cpu"
    seconds = time.monotonic() - exchange.received
    response.raw_headers += [
        (b"x-compute-type", f"{device}+optimized".encode()),
        (b"x-compute-time", b"%d" % round(1000 * seconds)),
        (b"x-compute-characters", b"%d" % characters(inputs)),
    ]
    return response


router = APIRouter(route_class=JsonRoute, tags=["tei"])
LIST = ListForm(b"[", item_bytes=1)
"""A bare list of vectors."""


class InputsRequest(TeiRequest):
    """Inputs, and the prompt before them."""

    inputs: TextsOrIds = Field(description="A text, token ids of one text, or a list of either.")
    prompt_name: str | None = Field(
        None, description="Name of a prompt in the checkpoint's configuration."
    )

    def reading(self, exchange: ApiExchange) -> Options:
        """Check the model and the inputs, and return the options of their tokenisation."""
        self.check_model(exchange.model.inference)
        check_given(self.inputs, "inputs")
        return self.options(exchange, self.prompt_name)


class EmbedAllRequest(InputsRequest):
    """Request body of `POST /embed_all`."""

    needs = check_embedder


class EmbedRequest(EmbedAllRequest):
    """Request body of `POST /embed`."""

    normalize: bool = Field(True, description="Return unit vectors.")
    dimensions: int | None = Field(
        None, description="Keep the first n features, then normalise; the checkpoint's default."
    )


@router.post("/embed", responses=replies([[float]], ERRORS))
async def embed_texts(body: EmbedRequest, exchange: ApiExchange) -> Response:
    """Return a list with a vector of each text, also for a single text."""
    wanted = EncodeOptions(("pooled",), dimensions=body.dimensions, normalize=body.normalize)
    return await _embedded(body, exchange, wanted)


@router.post("/embed_all", responses=replies([[[float]]], ERRORS))
async def embed_tokens(body: EmbedAllRequest, exchange: ApiExchange) -> Response:
    """Return the last hidden state of each token of each text, including special tokens."""
    return await _embedded(body, exchange, EncodeOptions(("tokens",), normalize=True))


async def _embedded(
    body: EmbedAllRequest, exchange: ApiExchange, wanted: EncodeOptions
) -> Response:
    reading = body.reading(exchange)
    prepared = await prepare_embedding(exchange, body.inputs, reading, wanted)
    return add_compute_headers(await answer(exchange, prepared, LIST), exchange, body.inputs)


tasks_router = APIRouter(route_class=JsonRoute, tags=["tasks"])
VALUE_BYTES = 40
"""Predicted bytes of an index and its value in JSON."""
SPARSE_KINDS: tuple[TaskKind, ...] = ("sparse", "hybrid")
_SPARSE_ENCODER = "a sparse encoder (SPLADE), or ask for method bm42,"
Vectors = tuple[list[SparseVector], Timings]


class EmbedSparseRequest(InputsRequest):
    """Request body of `POST /embed_sparse`."""

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


SPARSE_VALUE = named(
    "SparseValue", {"index": (int, "Token id, or hash of a stem."), "value": float}
)


@tasks_router.post("/embed_sparse", responses=replies([[SPARSE_VALUE]], ERRORS))
async def embed_sparse(body: EmbedSparseRequest, exchange: ApiExchange) -> Response:
    """Return a sparse vector of each text, with ascending indices."""
    vectors, timings = await (_sparse if body.method is None else _bm42)(body, exchange)
    size = VALUE_BYTES * sum(len(vector.indices) for vector in vectors) + 2 * len(vectors)
    reserve(exchange, size)
    response = await json_reply(exchange, lambda: values(vectors), timings)
    return add_compute_headers(response, exchange, body.inputs)


async def _sparse(body: EmbedSparseRequest, exchange: ApiExchange) -> Vectors:
    """Compute the model's sparse vectors.

    The number of non-zero weights is unknown before, so the bytes of whole vocabularies are
    reserved.
    """
    inference = exchange.model.inference
    prepared = await _prepare(body, exchange, "encode")
    plan = inference.plan(EncodeOptions(("sparse",)))
    size = plan.nbytes(prepared.texts, WEIGHT_BYTES)
    check_size(exchange, size, FEWER_TEXTS)
    exchange.reservation.grow(size, bounded=True)
    encodings = await inference.encode(prepared, plan)
    vectors = [SparseVector(own["sparse.indices"], own["sparse.values"]) for own in encodings]
    return vectors, prepared.timings


async def _bm42(body: EmbedSparseRequest, exchange: ApiExchange) -> Vectors:
    inference = exchange.model.inference
    prepared = await _prepare(body, exchange, "attention")
    tokens = sum(len(text.input_ids) for text in prepared.texts)
    check_size(exchange, VALUE_BYTES * tokens, FEWER_TEXTS)
    stream = last_layer(inference, prepared)
    exchange.reservation.grow(stream.hidden_bytes, bounded=True)
    return await bm42_vectors(inference, prepared, stream), prepared.timings


async def _prepare(
    body: EmbedSparseRequest, exchange: ApiExchange, lane: LaneName
) -> PreparedTexts:
    options, caller = body.reading(exchange), caller_of(exchange)
    return await exchange.model.inference.prepare(body.inputs, options, caller, lane)


def values(vectors: Sequence[SparseVector]) -> list[list[dict[str, object]]]:
    """Return each vector as a list of indices, ascending, and their values."""
    return [
        [
            {"index": index, "value": value}
            for index, value in zip(vector.indices.tolist(), vector.values, strict=True)
        ]
        for vector in vectors
    ]
