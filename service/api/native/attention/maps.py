"""`POST /attention`: the attention weights of any head of any layer."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

from fastapi import APIRouter
from starlette.responses import Response

from model.artifact.signature import MapKind
from service.api.native.attention.selection import (
    AttentionRequest,
    attention_selection,
    check_places,
    check_tower,
)
from service.api.native.attention.writers import BinaryWriter, JsonWriter, Writer, json_bytes
from service.api.native.texts import TEXT, TOKENS, Header, nested, reply, text_bytes, with_pictures
from service.api.wire.bodies import OPENAPI
from service.api.wire.media import Part, Unwritten
from service.api.wire.replies import PROBLEMS, replies
from service.api.wire.route import (
    ApiExchange,
    JsonRoute,
    PartsResponse,
    caller_of,
    check_size,
    reserve,
    wants_safetensors,
)
from service.api.wire.schemas import any_of, named
from service.errors import Unprocessable
from service.inference.attention.maps import (
    NO_MAPS,
    PREFIXES,
    STATISTICS_OF,
    AttentionSelection,
    LayerMaps,
)
from service.inference.attention.stream import GROUP_BYTES, AttentionStream

_SIZES: Mapping[MapKind, str] = {"encoder": "[S][S]", "decoder": "[T][T]", "cross": "[T][S]"}
"""Sizes of maps of S tokens of the text and T of its target."""


_ROWS, _ENLARGED = nested(float, 4), nested(float, 5)
_MAPS = any_of(_ROWS, _ENLARGED, {"indices": nested(int, 4), "values": _ROWS})


def _maps_of(kind: MapKind, prefix: str) -> dict[str, object]:
    """Return the fields of a kind of maps of a text, each of which may be absent."""
    size = f"`[layers][heads]{_SIZES[kind]}`"
    pixels = "with `enlarge` `[layers][heads][queries][height][width]`"
    fields: dict[str, object] = {
        "attention": (
            _MAPS,
            f"{size}, over keys; {pixels}; with `top_k` the largest weights of each query.",
        ),
        "norms": (
            any_of(_ROWS, _ENLARGED),
            f"{size}, norm of each key's contribution to each query; {pixels}.",
        ),
        "stats": (
            {name: [[float]] for name in STATISTICS_OF[kind]},
            "`[layers][heads]` by name, means over queries.",
        ),
        "queries": ([int], "Requested rows of the maps."),
        "keys": ([int], "Requested columns of the maps."),
        "bins": (
            {"queries?": [[int]], "keys?": [[int]]},
            "With `max_size`: tokens of each row and column.",
        ),
    }
    return {f"{prefix}{name}?": field for name, field in fields.items()}


RESULT = named(
    "AttentionResult",
    {
        **TEXT,
        **{name: form for kind in PREFIXES.items() for name, form in _maps_of(*kind).items()},
        "rollout?": ([[float]], "`[S][S]`."),
        "norm_rollout?": ([[float]], "`[S][S]`."),
        "pooled_shift?": (float, "1 − cosine of the pooled vectors with and without the ablation."),
        "target_logprob_shift?": (
            float,
            "Change of the target tokens' mean log-probability by the ablation.",
        ),
        "target_logprobs?": ([float], "`[T]`."),
        **{f"target_{name}?": (form, "Of the labels.") for name, form in TOKENS.items()},
    },
)
_OF_DECODER = dict.fromkeys(("decoder_layers?", "decoder_heads?"), ([int], "With targets."))
REPLY = reply(
    "AttentionReply", {"layers": [int], "heads": [int], **_OF_DECODER, "results": [RESULT]}
)
WHOLE_BYTES = 2**20
"""Maximum bytes of a reply that is complete before it is sent; larger replies are streamed."""
STREAM_BYTES = 4 * GROUP_BYTES
"""Maximum bytes of a streamed reply in memory at a time."""
FEWER_MAPS = "ask for fewer texts, layers or heads, for top_k or float16"
FEWER_NORMS = "ask for fewer texts, layers or heads"
FEWER_PIXELS = "ask for fewer pictures, queries, layers or heads, or leave `enlarge` out"

router = APIRouter(route_class=JsonRoute, tags=["inference"])


@router.post("/attention", responses=replies(REPLY, PROBLEMS, binary=True), openapi_extra=OPENAPI)
async def attention(body: AttentionRequest, exchange: ApiExchange) -> Response:
    """Return the attention weights of the requested heads and layers."""
    binary, caller = wants_safetensors(exchange), caller_of(exchange)
    body = await with_pictures(body, exchange)
    model = exchange.model
    inference = model.tower(body.inputs).inference
    check_tower(body.tower, inference)
    inference.require_heads()
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
    check_size(exchange, size, less, binary=binary)
    if not writer.length:
        size += text_bytes(texts)
    stream = inference.attention(prepared, selection, writer.dump)
    return await stream_reply(exchange, stream, writer, size)


async def stream_reply(
    exchange: ApiExchange,
    stream: AttentionStream,
    writer: Writer,
    size: int,
    before: Callable[[], Awaitable[None]] | None = None,
) -> PartsResponse:
    """Return a reply of `size` bytes that is sent while its maps are computed, unless it is small.

    `before` is awaited once the bytes are reserved, before anything is computed or written.
    """

    async def parts() -> AsyncGenerator[Part | Unwritten]:
        whole = writer.keeps_back or stream.selection.part.enlarge
        in_memory = size if whole else min(size, STREAM_BYTES)
        held = in_memory + stream.hidden_bytes
        reserve(exchange, size, held=held, advice=None)
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
    return PartsResponse(complete, writer.media_type, stream.prepared.timings, rest, writer.length)


async def written(stream: AttentionStream, writer: Writer) -> AsyncGenerator[Part | Unwritten]:
    """Yield the parts of the reply; none before something is computed."""
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
