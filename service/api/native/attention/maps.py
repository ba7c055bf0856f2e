"""`POST /attention`: weights of any head of any layer; `/attention/scores`: what is behind them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial

from fastapi import APIRouter
from starlette.responses import Response

from model.artifact.signature import MapKind
from service.api.native.attention.selection import (
    AttentionRequest,
    HeadScoresRequest,
    attention_selection,
    check_places,
    check_tower,
    head_selection,
)
from service.api.native.attention.writers import (
    BinaryWriter,
    JsonWriter,
    Writer,
    json_bytes,
    part_places,
)
from service.api.native.texts import TEXT, TOKENS, Envelope, nested, reply, text_bytes, text_fields
from service.api.wire.bodies import OPENAPI
from service.api.wire.media import JSON, JSON_BYTES_PER_FLOAT, Part, Unwritten
from service.api.wire.replies import PROBLEMS, replies
from service.api.wire.route import ApiExchange, JsonRoute, PartsResponse
from service.api.wire.schemas import any_of, named
from service.engines.contract import Floats, MapsTask, Output, TextTask
from service.errors import ReplyTooLarge, Unprocessable
from service.inference.attention.map_parts import MapPart, taken
from service.inference.attention.maps import (
    NO_MAPS,
    PREFIXES,
    STATISTICS_OF,
    AttentionSelection,
    LayerMaps,
    Lengths,
)
from service.inference.attention.stream import GROUP_BYTES, LAYER_BYTES, AttentionStream
from service.inference.encoding import PreparedTexts
from service.inference.tokenization.text import Text
from service.scheduler.outputs import requested

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
FEWER_SCORES = "ask for fewer texts, queries or keys"
FEWER_PIXELS = "ask for fewer pictures, queries, layers or heads, or leave `enlarge` out"

router = APIRouter(route_class=JsonRoute, tags=["inference"])


@router.post("/attention", responses=replies(REPLY, PROBLEMS, binary=True), openapi_extra=OPENAPI)
async def attention(body: AttentionRequest, exchange: ApiExchange) -> Response:
    """Return the attention weights of the requested heads and layers."""
    binary, caller = exchange.wants_safetensors(), exchange.call()
    body = await body.with_pictures(exchange)
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
    texts, fields = prepared.texts, _selected(selection)
    envelope = Envelope(model.name, prepared.engine, texts, fields, prepared.timings.warnings)
    check_places(selection, texts)
    writer: Writer = JsonWriter(envelope, selection)
    if binary:
        writer = BinaryWriter(envelope, selection, half=half)
    size = writer.length or json_bytes(selection, texts)
    less = FEWER_NORMS if "norms" in selection.include else FEWER_MAPS
    less = FEWER_PIXELS if selection.part.enlarge else less
    exchange.check_size(size, less, binary=binary)
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
        exchange.reserve(size, held=held, advice=None)
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


_SCORES = named(
    "HeadScoresResult",
    {
        **TEXT,
        "queries?": ([int], "Requested queries, non-negative."),
        "keys?": ([int], "Requested keys, non-negative."),
        "query_vectors": ([[float]], "`[Q][p]`, as they enter the score."),
        "key_vectors": ([[float]], "`[K][p]`, as they enter the score."),
        "scores": ([[float]], "`[Q][K]`, before normalisation."),
        "weights": ([[float]], "`[Q][K]`; a row over all keys sums to 1."),
    },
)
_SCALE = (
    "Factor of the score: Σ_i q_i · k_i · scale, plus the bias of relative positions; null if the "
    "score is not a sum of products."
)
SCORES_REPLY = reply(
    "HeadScoresReply",
    {"layer": int, "head": int, "scale": (float | None, _SCALE), "results": [_SCORES]},
)


@router.post("/attention/scores", responses=replies(SCORES_REPLY, PROBLEMS))
async def head_scores(body: HeadScoresRequest, exchange: ApiExchange) -> Response:
    """Return the queries, keys, scores and weights of one head."""
    body = await body.with_pictures(exchange)
    model = exchange.model
    inference = model.tower(body.inputs).inference
    inference.require_heads()
    selection = head_selection(body, inference.config)
    prepared = await inference.prepare(
        body.inputs, body.options, exchange.call(), "attention", body.backend
    )
    texts, config = prepared.texts, inference.config
    held = working_bytes(texts, config.hidden_size)
    check_places(selection, texts)
    ((layer,), (head,)) = selection.maps["encoder"]
    products = config.attention_score == "scaled_dot_product"
    scale = 1 / math.sqrt(config.head_size) if products else None  # Vaswani et al. 2017
    fields = {"layer": layer, "head": head, "scale": scale}
    envelope = Envelope(model.name, prepared.engine, texts, fields, prepared.timings.warnings)
    size = scores_bytes(texts, selection.part, config.head_size)
    exchange.reserve(size, held=size + held, advice=FEWER_SCORES)
    arrays = await head_arrays(prepared, selection)
    results = (
        text_fields(text) | part_places(selection, Lengths.of(text)) | own
        for text, own in zip(texts, arrays, strict=True)
    )
    return PartsResponse([envelope.pieces(results)], JSON, prepared.timings)


def working_bytes(texts: Sequence[Text], hidden_size: int) -> int:
    """Return the bytes beside the reply: all states, and scores and weights of the longest text."""
    sizes = [2 * 4 * text.size**2 for text in texts]
    for index, size in enumerate(sizes):
        if size > LAYER_BYTES:
            raise ReplyTooLarge(
                f"inputs[{index}] has {texts[index].size} tokens: the scores and weights of a "
                f"head take {size} bytes, the limit is {LAYER_BYTES}; ask for a shorter text"
            )
    return 4 * hidden_size * sum(text.size for text in texts) + max(sizes)


async def head_arrays(
    prepared: PreparedTexts, selection: AttentionSelection
) -> list[dict[str, Floats]]:
    """Compute the arrays of each text: a forward pass of all, then the head one text at a time.

    The scores of an ablated head are still computed.
    """
    layers, heads = selection.maps["encoder"]
    ablated = selection.ablated["encoder"]
    tasks = [
        TextTask(
            text.input_ids,
            text.segment_ids,
            hidden_layers=layers,
            ablated=ablated,
            pixels=text.pixels,
        )
        for text in prepared.texts
    ]
    outputs = await prepared.submit("attention", tasks)
    reduce = [partial(_reduced, selection.part)]
    arrays: list[dict[str, Floats]] = []
    for text, output in zip(prepared.texts, outputs, strict=True):
        (states,) = output.hidden
        task = MapsTask(states, states, layers[0], heads, scores=True, segment=text.segment)
        arrays += await prepared.submit("attention", [task], reduce, resumed=True)
    return arrays


def _reduced(part: MapPart, output: Output) -> dict[str, Floats]:
    """Return the selected tokens' arrays, in the thread that computed them."""
    compared, maps = requested(output.head_scores), requested(output.maps)
    return {
        "query_vectors": taken(compared.queries[0], part.queries, -2),
        "key_vectors": taken(compared.keys[0], part.keys, -2),
        "scores": part.of(compared.scores[0]),
        "weights": part.of(maps[0]),
    }


def scores_bytes(texts: Sequence[Text], part: MapPart, size: int) -> int:
    """Return the predicted bytes of the reply, for queries and keys of `size` features."""
    numbers = 0
    for text in texts:
        tokens = len(text.input_ids)
        rows, columns = part.shape(tokens, tokens)
        numbers += (rows + columns) * (size + 1) + 2 * rows * columns
    return JSON_BYTES_PER_FLOAT * numbers + text_bytes(texts)
