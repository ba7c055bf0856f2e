"""`POST /attention`: the attention weights of any head of any layer."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Request
from pydantic import AfterValidator, Field, PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from model.config import EncoderConfig
from service.api.media import Part
from service.api.native.attention_forms import BinaryWriter, JsonWriter, Writer, json_bytes
from service.api.native.replies import AttentionReply, documented
from service.api.native.texts import (
    Header,
    StrictRequest,
    TextRequest,
    check_size,
    no_duplicates,
)
from service.api.route import (
    JsonRoute,
    PartsResponse,
    Reply,
    caller_of,
    model_of,
    service_of,
    wants_safetensors,
)
from service.errors import Unprocessable
from service.http.budget import ByteBudget
from service.inference.attention import GROUP_BYTES, AttentionStream
from service.inference.maps import AttentionSelection, LayerMaps

WHOLE_BYTES = 2**20
"""A reply up to this size is complete before it is sent; a larger one is streamed."""
STREAM_BYTES = 4 * GROUP_BYTES
"""Bytes of a streamed reply that are in memory at a time."""
FEWER_MAPS = "ask for fewer texts, layers or heads, for top_k or float16"

T = TypeVar("T")

router = APIRouter(route_class=JsonRoute, tags=["inference"])


def _indices(value: Any) -> list[int] | None:
    """A list of integers, none twice; stops at the first thing that is not one."""
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("indices", "a list with at least one integer is needed")
    for item in value:
        if type(item) is not int:
            raise PydanticCustomError("indices", "a list of integers is needed")
    return no_duplicates(value)


Indices = Annotated[
    list[int] | None,
    PlainValidator(_indices),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": {"type": "integer"},
                    "minItems": 1,
                    "uniqueItems": True,
                },
                {"type": "null"},
            ]
        }
    ),
]


class Head(StrictRequest):
    """A head of a layer; negative numbers count from the end."""

    layer: int
    head: int


class AttentionRequest(TextRequest):
    """`POST /attention`."""

    layers: Indices = Field(None, description="0 … L−1, negative from the end; all by default.")
    heads: Indices = Field(None, description="0 … N−1, negative from the end; all by default.")
    include: Annotated[
        list[Literal["weights", "stats", "rollout"]],
        Field(min_length=1, max_length=3),
        AfterValidator(no_duplicates),
    ] = Field(
        default=["weights"], description="The maps, statistics of each, and the attention rollout."
    )
    top_k: int | None = Field(
        None, ge=1, description="Of each query's weights the k largest, instead of all."
    )
    ablate: Annotated[list[Head], Field(min_length=1, max_length=4096)] | None = Field(
        None, description="Heads whose output is multiplied by zero."
    )
    dtype: Literal["float32", "float16"] = Field("float32", description="Of the binary form.")


@router.post("/attention", response_model=None, responses=documented(AttentionReply))
async def attention(body: AttentionRequest, request: Request) -> Response:
    """The attention weights of any head of any layer."""
    state, binary, caller = service_of(request), wants_safetensors(request), caller_of(request)
    model = model_of(request)
    inference = model.inference
    inference.require_maps()
    selection = attention_selection(body, inference.config)
    half = body.dtype == "float16"
    if half and not binary:
        raise Unprocessable("dtype float16 is for the binary form (Accept: safetensors)")
    prepared = await inference.prepare(body.inputs, body.options, caller, "attention", body.backend)
    fields = {"layers": list(selection.layers), "heads": list(selection.heads)}
    header = Header(model.name, prepared.engine, fields)
    writer: Writer
    if binary:
        writer = BinaryWriter(header, selection, prepared.texts, half=half)
    else:
        writer = JsonWriter(header, selection, prepared.texts)
    lengths = [len(text.input_ids) for text in prepared.texts]
    size = writer.length or json_bytes(selection, lengths)
    check_size(size, state.settings.max_response_bytes, FEWER_MAPS, binary=binary)
    stream = inference.attention(prepared, selection, writer.dump)
    return PartsResponse(await stream_reply(state.replies, stream, writer, size))


async def stream_reply(
    replies: ByteBudget,
    stream: AttentionStream,
    writer: Writer,
    size: int,
    before: Callable[[], Awaitable[None]] | None = None,
) -> Reply:
    """A reply that is sent while its maps are computed, unless it is small.

    Args:
        replies: bytes of all replies in flight, of which it holds what is in memory of its own.
        stream: the maps.
        writer: their form.
        size: bytes predicted of the reply.
        before: awaited once those bytes are held, before anything is computed or written.

    """
    held = size if writer.keeps_back else min(size, STREAM_BYTES)

    async def parts() -> AsyncGenerator[Part]:
        with replies.hold(held + stream.hidden_bytes):
            if before:
                await before()
            async with contextlib.aclosing(written(stream, writer)) as written_parts:
                async for part in written_parts:
                    yield part
                    del part  # what is sent is not kept while more is computed

    rest = None
    if size <= WHOLE_BYTES:
        complete = [part async for part in parts()]
    else:
        rest = parts()
        complete = [await anext(rest)]
        stream.caller = dataclasses.replace(stream.caller, finish_by=math.inf)
    return Reply(complete, writer.media_type, stream.timings, rest, writer.length)


async def written(stream: AttentionStream, writer: Writer) -> AsyncGenerator[Part]:
    """The reply's parts; none before something is computed.

    Raises:
        ServiceError: the request was not admitted, or the engine failed.

    """
    parts = writer.start()
    async with contextlib.aclosing(stream.results()) as results:
        async for result in results:
            if isinstance(result, LayerMaps):
                parts += writer.layer(result)
            elif result.rollout is None:
                parts += writer.text(result)
            else:  # of 512 tokens it takes milliseconds to write
                parts += await asyncio.to_thread(writer.text, result)
            del result
            while parts:
                yield parts.pop(0)
    for part in parts + writer.end():
        yield part


def attention_selection(request: AttentionRequest, config: EncoderConfig) -> AttentionSelection:
    """The parts of the maps that a request asks for, its indices counted from the first.

    Raises:
        Unprocessable: a layer or head that there is not, one named twice, or `top_k` of nothing.

    """
    weights = "weights" in request.include
    if request.top_k is not None and not weights:
        raise Unprocessable("top_k is of the weights, which `include` leaves out")
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    ablated = tuple(
        (_index("ablate: layer", one.layer, layers), _index("ablate: head", one.head, heads))
        for one in request.ablate or ()
    )
    return AttentionSelection(
        layers=_selected("layers", request.layers, layers),
        heads=_selected("heads", request.heads, heads),
        weights=weights,
        statistics="stats" in request.include,
        rollout="rollout" in request.include,
        top_k=request.top_k,
        ablated=_distinct("ablate", ablated),
    )


def _selected(name: str, asked: Sequence[int] | None, size: int) -> tuple[int, ...]:
    """Negative ones counted from the end; in the order asked."""
    if asked is None:
        return tuple(range(size))
    return _distinct(name, tuple(_index(name, index, size) for index in asked))


def _index(name: str, index: int, size: int) -> int:
    if not -size <= index < size:
        raise Unprocessable(f"{name}: {index} is not in {-size} … {size - 1}")
    return index % size


def _distinct(name: str, values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) != len(values):
        raise Unprocessable(f"{name}: one is listed twice (negative ones count from the end)")
    return values
