"""`POST /attention`: the attention weights of any head of any layer."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.native.attention.layout import json_bytes
from service.api.native.attention.replies import AttentionReply
from service.api.native.attention.selection import (
    AttentionRequest,
    attention_selection,
    check_places,
    check_tower,
)
from service.api.native.attention.writers import BinaryWriter, JsonWriter, Writer
from service.api.native.replies import documented
from service.api.native.texts import Header, text_bytes, with_pictures
from service.api.wire.media import Part, Unwritten
from service.api.wire.picture_forms import OPENAPI
from service.api.wire.reserved import check_size, reserve
from service.api.wire.route import (
    JsonRoute,
    PartsResponse,
    Reply,
    caller_of,
    model_of,
    service_of,
    wants_safetensors,
)
from service.errors import Unprocessable
from service.inference.attention.maps import LayerMaps
from service.inference.attention.selection import NO_MAPS, AttentionSelection
from service.inference.attention.stream import GROUP_BYTES, AttentionStream

WHOLE_BYTES = 2**20
"""Maximum bytes of a reply that is complete before it is sent; larger replies are streamed."""
STREAM_BYTES = 4 * GROUP_BYTES
"""Maximum bytes of a streamed reply in memory at a time."""
FEWER_MAPS = "ask for fewer texts, layers or heads, for top_k or float16"
FEWER_NORMS = "ask for fewer texts, layers or heads"
FEWER_PIXELS = "ask for fewer pictures, queries, layers or heads, or leave `enlarge` out"

router = APIRouter(route_class=JsonRoute, tags=["inference"])


@router.post(
    "/attention", response_model=None, responses=documented(AttentionReply), openapi_extra=OPENAPI
)
async def attention(body: AttentionRequest, request: Request) -> Response:
    """Return the attention weights of the requested heads and layers."""
    binary, caller = wants_safetensors(request), caller_of(request)
    body = await with_pictures(body, request)
    model = model_of(request)
    inference = model.tower(body.inputs).inference
    check_tower(body.tower, inference)
    inference.require_maps()
    decoder = inference.decoder.layers if inference.decoder else None
    selection = attention_selection(body, inference.config, decoder)
    half = body.dtype == "float16"
    if half and not binary:
        raise Unprocessable("dtype float16 is for the binary form (Accept: safetensors)")
    prepared = await inference.prepare(body.inputs, body.options, caller, "attention", body.backend)
    if body.targets:
        prepared = await inference.with_targets(prepared, body.targets, body.target_options)
    header = Header(model.name, prepared.engine, _selected(selection), prepared.timings.warnings)
    texts = prepared.texts
    check_places(selection, texts)
    writer: BinaryWriter | JsonWriter
    if binary:
        writer = BinaryWriter(header, selection, texts, half=half)
    else:
        writer = JsonWriter(header, selection, texts)
    size = writer.length or json_bytes(selection, texts)
    less = FEWER_NORMS if "norms" in selection.include else FEWER_MAPS
    less = FEWER_PIXELS if selection.part.enlarge else less
    check_size(size, service_of(request).settings.max_response_bytes, less, binary=binary)
    if not writer.length:
        size += text_bytes(texts)
    stream = inference.attention(prepared, selection, writer.dump)
    return PartsResponse(await stream_reply(request, stream, writer, size))


async def stream_reply(
    request: Request,
    stream: AttentionStream,
    writer: Writer,
    size: int,
    before: Callable[[], Awaitable[None]] | None = None,
) -> Reply:
    """Return a reply that is sent while its maps are computed, unless the reply is small.

    Args:
        request: HTTP request.
        stream: maps.
        writer: serialisation of the maps.
        size: predicted bytes of the reply.
        before: awaited once the bytes are reserved, before anything is computed or written.

    """

    async def parts() -> AsyncGenerator[Part | Unwritten]:
        whole = writer.keeps_back or stream.selection.part.enlarge
        in_memory = size if whole else min(size, STREAM_BYTES)
        held = in_memory + stream.hidden_bytes
        with reserve(request, size, held=held, advice=None):
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
        stream.drop_deadline()
    return Reply(complete, writer.media_type, stream.timings, rest, writer.length)


async def written(stream: AttentionStream, writer: Writer) -> AsyncGenerator[Part | Unwritten]:
    """Yield the parts of the reply; none before something is computed.

    Raises:
        ServiceError: the request is not admitted, or the engine fails.

    """
    parts = [*writer.start()]
    async with contextlib.aclosing(stream.results()) as results:
        async for result in results:
            if isinstance(result, LayerMaps):
                parts += writer.layer(result)
            else:
                parts += writer.text(result)
            del result
            while parts:
                yield parts.pop(0)
    for part in [*parts, *writer.end()]:
        yield part


def _selected(selection: AttentionSelection) -> dict[str, list[int]]:
    """Return the reply's fields that list the selected layers and heads."""
    layers, heads = selection.maps.get("encoder", NO_MAPS)
    fields = {"layers": [*layers], "heads": [*heads]}
    if selection.targets:
        layers, heads = selection.maps.get("decoder") or selection.maps.get("cross", NO_MAPS)
        fields |= {"decoder_layers": [*layers], "decoder_heads": [*heads]}
    return fields
