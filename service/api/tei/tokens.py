"""`POST /tokenize` and `/decode`, and `GET /vocabulary`: tokens without the model."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from service.api.drop_in.embedding import IDS_SCHEMA, check_given, token_ids
from service.api.requests import LenientRequest
from service.api.tei.vectors import ERRORS, SPARSE_KINDS
from service.api.wire.media import JSON, Part, is_known
from service.api.wire.replies import replies
from service.api.wire.route import (
    CHARACTER_BYTES,
    ApiExchange,
    JsonRoute,
    PartsResponse,
    bind_model,
    caller_of,
    check_expected,
    check_size,
    chosen_model,
    json_reply,
    reserve,
)
from service.api.wire.schemas import any_of, named
from service.errors import Unprocessable
from service.inference.core import Inference
from service.inference.tasks.task_heads import required_task
from service.inference.timings import Timings
from service.inference.tokenization.inputs import TokenIds, characters
from service.inference.tokenization.text import TextTokens

router = APIRouter(route_class=JsonRoute, tags=["tei"])
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


@router.post("/tokenize", responses=replies([[TOKEN]], ERRORS))
async def tokenize(body: TokenizeRequest, exchange: ApiExchange) -> Response:
    """Return the tokens of each text after its prompt, without a limit of length."""
    check_given(body.inputs, "inputs")
    inference, caller, began = exchange.model.inference, caller_of(exchange), time.monotonic()
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
                check_size(exchange, size, "send fewer or shorter texts")
            written.append(_pieces_json(text, b",[" if index else b"["))
        return written

    counting = threading.Lock()
    parts = await inference.request_tokenizer.run(body.inputs, work, caller, pieces=True)
    exchange.reservation.shrink(most)
    reserve(exchange, size)
    timings = Timings(tokens, began, time.monotonic() - began)
    content: list[Part] = [b"[", *parts, b"]"]
    return PartsResponse([iter(content)], JSON, timings)


def _pieces_json(text: TextTokens, opening: bytes) -> bytes:
    """Serialise the tokens of a text in steps, so that other threads run between."""
    parts: list[bytes] = []
    for pieces in text.steps(PIECES_PER_STEP):
        parts += b",", orjson.dumps(pieces)[1:-1]
    return b"".join([opening, *parts[1:], b"]"])


@router.post("/decode", responses=replies([str], ERRORS))
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

    texts = await inference.request_tokenizer.run(body.ids, work, caller_of(exchange))
    size = CHARACTER_BYTES * sum(map(len, texts)) + len(texts)
    reserve(exchange, size)
    tokens = sum(len(given.ids) for given in body.ids)
    timings = Timings(tokens, began, time.monotonic() - began)
    return await json_reply(exchange, lambda: texts, timings)


tasks_router = APIRouter(tags=["tasks"])
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


@tasks_router.get("/vocabulary", responses=replies([str | None], {304: _CURRENT, **ERRORS}))
async def vocabulary(
    query: Annotated[VocabularyQuery, Query()], request: Request, exchange: ApiExchange
) -> Response:
    """Return the tokens of the requested ids, in order; by default of all ids.

    Ids without a token are null. The indices of method bm42 are hashes of stems, which have no
    vocabulary.
    """
    model = await chosen_model(exchange, query.model, _check_sparse)
    bind_model(exchange, model, query.model)
    check_expected(exchange)
    inference, etag = model.inference, f'"{model.artifact.sha256[:32]}"'
    indices = _known(query.index, inference.config.vocab_size)
    headers = {"etag": etag, "cache-control": "no-cache"}
    if is_known(request, etag):
        return Response(status_code=304, headers=headers)
    size = TOKEN_BYTES * len(indices)
    timings = Timings(0, time.monotonic(), 0.0)
    reserve(exchange, size, advice="name some by `index`")
    reply = await json_reply(exchange, lambda: inference.tokenizer.vocabulary(indices), timings)
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
