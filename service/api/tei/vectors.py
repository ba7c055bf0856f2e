"""Vectors and tokens of texts, in text-embeddings-inference's format.

`POST /embed`, `/embed_all`, `/embed_sparse`, `/tokenize` and `/decode`, `GET /vocabulary`; fields,
headers and errors of all routes in the format.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Annotated, Literal

import orjson
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from model.numerics.task_head import TaskKind
from service.api.drop_in.embedding import (
    IDS_SCHEMA,
    ListForm,
    TextsOrIds,
    check_embedder,
    check_given,
    prepare_embedding,
    token_ids,
)
from service.api.requests import LenientRequest
from service.api.wire.media import JSON, Part, is_known
from service.api.wire.replies import error_reply, problems_in_form, replies
from service.api.wire.route import (
    CHARACTER_BYTES,
    FEWER_TEXTS,
    ApiExchange,
    JsonRoute,
    PartsResponse,
)
from service.api.wire.schemas import any_of, named
from service.errors import NoTaskHead, ServiceError, Unauthorized, Unprocessable
from service.inference.bm42 import bm42_vectors, check_word_pieces, last_layer
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions, PreparedTexts
from service.inference.outputs.task_head import WEIGHT_BYTES, SparseVector
from service.inference.tasks.task_heads import required_task
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Input, TokenIds, characters
from service.inference.tokenization.text import TextTokens
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

    def options(self, exchange: ApiExchange, prompt_name: str | None = None) -> Options:
        """Return the tokenisation options of the texts."""
        truncate = self.truncate
        if truncate is None:
            truncate = exchange.service.settings.auto_truncate
        direction: Direction = "left" if self.truncation_direction in ("Left", "left") else "right"
        return Options(truncate, direction, prompt_name)


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


router = APIRouter(route_class=JsonRoute)
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


@router.post("/embed", tags=["tei"], responses=replies([[float]], ERRORS))
async def embed_texts(body: EmbedRequest, exchange: ApiExchange) -> Response:
    """Return a list with a vector of each text, also for a single text."""
    wanted = EncodeOptions(("pooled",), dimensions=body.dimensions, normalize=body.normalize)
    return await _embedded(body, exchange, wanted)


@router.post("/embed_all", tags=["tei"], responses=replies([[[float]]], ERRORS))
async def embed_tokens(body: EmbedAllRequest, exchange: ApiExchange) -> Response:
    """Return the last hidden state of each token of each text, including special tokens."""
    return await _embedded(body, exchange, EncodeOptions(("tokens",), normalize=True))


async def _embedded(
    body: EmbedAllRequest, exchange: ApiExchange, wanted: EncodeOptions
) -> Response:
    reading = body.reading(exchange)
    prepared = await prepare_embedding(exchange, body.inputs, reading, wanted)
    response = await prepared.answer(exchange, LIST)
    return add_compute_headers(response, exchange, body.inputs)


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


@router.post("/embed_sparse", tags=["tasks"], responses=replies([[SPARSE_VALUE]], ERRORS))
async def embed_sparse(body: EmbedSparseRequest, exchange: ApiExchange) -> Response:
    """Return a sparse vector of each text, with ascending indices."""
    vectors, timings = await (_sparse if body.method is None else _bm42)(body, exchange)
    size = VALUE_BYTES * sum(len(vector.indices) for vector in vectors) + 2 * len(vectors)
    exchange.reserve(size)
    response = await exchange.json_reply(lambda: values(vectors), timings)
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
    exchange.check_size(size, FEWER_TEXTS)
    exchange.reservation.grow(size, bounded=True)
    encodings = await inference.encode(prepared, plan)
    vectors = [SparseVector(own["sparse.indices"], own["sparse.values"]) for own in encodings]
    return vectors, prepared.timings


async def _bm42(body: EmbedSparseRequest, exchange: ApiExchange) -> Vectors:
    inference = exchange.model.inference
    prepared = await _prepare(body, exchange, "attention")
    tokens = sum(len(text.input_ids) for text in prepared.texts)
    exchange.check_size(VALUE_BYTES * tokens, FEWER_TEXTS)
    stream = last_layer(inference, prepared)
    exchange.reservation.grow(stream.hidden_bytes, bounded=True)
    return await bm42_vectors(inference, prepared, stream), prepared.timings


async def _prepare(
    body: EmbedSparseRequest, exchange: ApiExchange, lane: LaneName
) -> PreparedTexts:
    options, caller = body.reading(exchange), exchange.call()
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


PIECE_BYTES = 96
"""Predicted bytes of a token in JSON, without its text."""
PIECES_PER_STEP = 2**12
"""Number of tokens serialised at a time, as the GIL is held meanwhile for about a millisecond."""


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise PydanticCustomError("inputs", "a text or a list of texts is needed")
    return list(value)


def _ids(value: object) -> list[TokenIds]:
    if isinstance(value, list) and value and not isinstance(value[0], list):
        return [token_ids(value)]
    if not isinstance(value, list):
        raise PydanticCustomError("ids", "a list of token ids or a list of such is needed")
    return [token_ids(item) for item in value]


class TokenizeRequest(LenientRequest):
    """Request body of `POST /tokenize`."""

    inputs: Annotated[list[str], PlainValidator(_texts), WithJsonSchema(any_of(str, [str]))] = (
        Field(description="A text or a list of texts.")
    )
    add_special_tokens: bool = Field(
        True, description="Whether to add the tokenizer's special tokens to each text."
    )
    prompt_name: str | None = Field(
        None, description="Name of a prompt in the checkpoint's configuration."
    )


class DecodeRequest(LenientRequest):
    """Request body of `POST /decode`."""

    ids: Annotated[
        list[TokenIds], PlainValidator(_ids), WithJsonSchema(any_of(IDS_SCHEMA, [IDS_SCHEMA]))
    ] = Field(description="Token ids of a text, or a list of such lists.")
    skip_special_tokens: bool = Field(True, description="Whether to omit special tokens.")


TOKEN = named(
    "SimpleToken",
    {
        "id": int,
        "text": str,
        "special": bool,
        "start": (int | None, "Offset in bytes of UTF-8; null for special tokens."),
        "stop": int | None,
    },
)


@router.post("/tokenize", tags=["tei"], responses=replies([[TOKEN]], ERRORS))
async def tokenize(body: TokenizeRequest, exchange: ApiExchange) -> Response:
    """Return the tokens of each text after its prompt, without a limit of length."""
    check_given(body.inputs, "inputs")
    inference, caller, began = exchange.model.inference, exchange.call(), time.monotonic()
    limit = exchange.service.settings.max_response_bytes
    most = min(limit, (PIECE_BYTES + CHARACTER_BYTES) * characters(body.inputs))
    exchange.reservation.grow(most)  # until the exact size is known
    tokens = size = 0

    def work(texts: Sequence[str], first: int) -> list[bytes]:
        nonlocal tokens, size
        special, written = body.add_special_tokens, []
        read = inference.tokenizer.all_tokens(texts, body.prompt_name, special_tokens=special)
        for index, text in enumerate(read, first):
            with counting:
                tokens += len(text.ids)
                size += PIECE_BYTES * len(text.ids) + CHARACTER_BYTES * text.characters
                exchange.check_size(size, "send fewer or shorter texts")
            written.append(_pieces_json(text, b",[" if index else b"["))
        return written

    counting = threading.Lock()
    parts = await inference.request_tokenizer.run(body.inputs, work, caller, pieces=True)
    exchange.reservation.shrink(most)
    exchange.reserve(size)
    timings = Timings(tokens, began, time.monotonic() - began)
    content: list[Part] = [b"[", *parts, b"]"]
    return PartsResponse([iter(content)], JSON, timings)


def _pieces_json(text: TextTokens, opening: bytes) -> bytes:
    """Serialise the tokens of a text in steps, so that other threads run between."""
    parts: list[bytes] = []
    for pieces in text.steps(PIECES_PER_STEP):
        parts += b",", orjson.dumps(pieces)[1:-1]
    return b"".join([opening, *parts[1:], b"]"])


@router.post("/decode", tags=["tei"], responses=replies([str], ERRORS))
async def decode(body: DecodeRequest, exchange: ApiExchange) -> Response:
    """Return the text of each list of token ids."""
    check_given(body.ids, "ids")
    inference, began = exchange.model.inference, time.monotonic()

    def work(batch: Sequence[TokenIds], first: int) -> list[str]:
        skip, decode_ids = body.skip_special_tokens, inference.tokenizer.decode
        return [
            decode_ids(f"ids[{index}]", ids, skip_special_tokens=skip)
            for index, ids in enumerate(batch, first)
        ]

    texts = await inference.request_tokenizer.run(body.ids, work, exchange.call())
    size = CHARACTER_BYTES * sum(map(len, texts)) + len(texts)
    exchange.reserve(size)
    tokens = sum(len(given.ids) for given in body.ids)
    timings = Timings(tokens, began, time.monotonic() - began)
    return await exchange.json_reply(lambda: texts, timings)


queries = APIRouter(tags=["tasks"])
TOKEN_BYTES = 24
"""Predicted bytes of a token in JSON, above the mean of a vocabulary."""


class VocabularyQuery(BaseModel):
    """Query of `GET /vocabulary`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = Field(
        None, description="Name of a model; the first sparse encoder by default."
    )
    index: list[int] = Field(
        [], description="Token ids, as /embed_sparse returns them; all by default."
    )


_CURRENT = {"description": "The client's copy is current, by the ETag in `if-none-match`"}


@queries.get("/vocabulary", responses=replies([str | None], {304: _CURRENT, **ERRORS}))
async def vocabulary(
    query: Annotated[VocabularyQuery, Query()], request: Request, exchange: ApiExchange
) -> Response:
    """Return the tokens of the requested ids, in order; by default of all ids.

    Ids without a token are null. The indices of method bm42 are hashes of stems, which have no
    vocabulary.
    """
    model = await exchange.chosen_model(query.model, _check_sparse)
    exchange.bind_model(model, query.model)
    exchange.check_expected()
    inference, etag = model.inference, f'"{model.artifact.sha256[:32]}"'
    indices = _known(query.index, inference.config.vocab_size)
    headers = {"etag": etag, "cache-control": "no-cache"}
    if is_known(request, etag):
        return Response(status_code=304, headers=headers)
    size = TOKEN_BYTES * len(indices)
    timings = Timings(0, time.monotonic(), 0.0)
    exchange.reserve(size, advice="name some by `index`")
    reply = await exchange.json_reply(lambda: inference.tokenizer.vocabulary(indices), timings)
    reply.headers.update(headers)
    return reply


def _check_sparse(inference: Inference) -> None:
    required_task(inference.manifest, SPARSE_KINDS, "a sparse encoder (SPLADE)")


def _known(asked: Sequence[int], size: int) -> Sequence[int]:
    """Return the requested indices, or all indices."""
    for place, index in enumerate(asked):
        if not 0 <= index < size:
            raise Unprocessable(
                f"index[{place}] is not in 0 … {size - 1}; indices of method bm42 are hashes of "
                "stems, which have no vocabulary"
            )
    return asked or range(size)
