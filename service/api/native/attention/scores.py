"""`POST /attention/scores`: queries, keys and scores behind the weights of one head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from model.config.encoder import EncoderConfig
from service.api.native.attention.selection import Places, check_places, token_numbers
from service.api.native.attention.writers import part_places
from service.api.native.texts import (
    TEXT,
    Ablate,
    EncoderHead,
    Header,
    TextRequest,
    ablated_heads,
    reply,
    reply_pieces,
    selected_index,
    text_bytes,
    text_fields,
    usage,
    with_pictures,
)
from service.api.wire.media import JSON, JSON_BYTES_PER_FLOAT
from service.api.wire.replies import PROBLEMS, replies
from service.api.wire.route import ApiExchange, JsonRoute, PartsResponse, caller_of, reserve
from service.api.wire.schemas import named
from service.engines.contract import Floats, MapsTask, Output, TextTask
from service.errors import ReplyTooLarge
from service.inference.attention.map_parts import MapPart, taken
from service.inference.attention.maps import AttentionSelection, Lengths
from service.inference.attention.stream import LAYER_BYTES
from service.inference.encoding import PreparedTexts
from service.inference.tokenization.text import Text
from service.scheduler.outputs import requested

FEWER = "ask for fewer texts, queries or keys"

router = APIRouter(route_class=JsonRoute, tags=["inference"])


class HeadScoresRequest(TextRequest):
    """Request body of `POST /attention/scores`."""

    layer: int = Field(description="Layer 0 … L−1, negative from the end.")
    head: int = Field(description="Head 0 … N−1, negative from the end.")
    queries: Places | None = Field(
        None,
        description="Query tokens, 0 … S−1, negative from the end of each text; of a picture also "
        "patches as [row, column] and special tokens by name; all by default.",
    )
    keys: Places | None = Field(
        None, description="Key tokens, counted as `queries`; all by default."
    )
    ablate: Ablate[EncoderHead] = Field(
        None, description="Heads of the encoder whose output is set to zero."
    )


RESULT = named(
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
REPLY = reply(
    "HeadScoresReply",
    {"layer": int, "head": int, "scale": (float | None, _SCALE), "results": [RESULT]},
)


@router.post("/attention/scores", responses=replies(REPLY, PROBLEMS))
async def head_scores(body: HeadScoresRequest, exchange: ApiExchange) -> Response:
    """Return the queries, keys, scores and weights of one head."""
    body = await with_pictures(body, exchange)
    model = exchange.model
    inference = model.tower(body.inputs).inference
    inference.require_heads()
    selection = head_selection(body, inference.config)
    prepared = await inference.prepare(
        body.inputs, body.options, caller_of(exchange), "attention", body.backend
    )
    texts, config = prepared.texts, inference.config
    held = working_bytes(texts, config.hidden_size)
    check_places(selection, texts)
    ((layer,), (head,)) = selection.maps["encoder"]
    fields = {"layer": layer, "head": head, "scale": scale(config)}
    header = Header(model.name, prepared.engine, fields, prepared.timings.warnings)
    size = reply_bytes(texts, selection.part, config.head_size)
    reserve(exchange, size, held=size + held, advice=FEWER)
    arrays = await compute(prepared, selection)
    results = (
        text_fields(text) | part_places(selection, Lengths.of(text)) | own
        for text, own in zip(texts, arrays, strict=True)
    )
    return PartsResponse(
        [reply_pieces(header.names, results, usage(texts))], JSON, prepared.timings
    )


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


async def compute(
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


def head_selection(request: HeadScoresRequest, config: EncoderConfig) -> AttentionSelection:
    """Return the selection of the requested head and tokens, with non-negative head indices."""
    layer = selected_index("layer", request.layer, config.num_hidden_layers)
    head = selected_index("head", request.head, config.num_attention_heads)
    patches = config.embeddings.patches
    return AttentionSelection(
        {"encoder": ((layer,), (head,))},
        part=MapPart(
            token_numbers("queries", request.queries, patches),
            token_numbers("keys", request.keys, patches),
        ),
        ablated={"encoder": ablated_heads(request.ablate, "encoder", config, "")},
    )


def scale(config: EncoderConfig) -> float | None:
    """Return the factor of each product of features in the score: 1/√p (Vaswani et al. 2017).

    None if the score is not a sum of products.
    """
    if config.attention_score != "scaled_dot_product":
        return None
    return 1 / math.sqrt(config.head_size)


def reply_bytes(texts: Sequence[Text], part: MapPart, size: int) -> int:
    """Return the predicted bytes of the reply, for queries and keys of `size` features."""
    numbers = 0
    for text in texts:
        tokens = len(text.input_ids)
        rows, columns = part.shape(tokens, tokens)
        numbers += (rows + columns) * (size + 1) + 2 * rows * columns
    return JSON_BYTES_PER_FLOAT * numbers + text_bytes(texts)
