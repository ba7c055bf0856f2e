"""`POST /attention/scores`: queries, keys and scores behind the weights of one head."""

from __future__ import annotations

import math
from collections.abc import Sequence

import orjson
from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from model.config.encoder import EncoderConfig
from service.api.native.attention.selection import Places, check_places, token_numbers
from service.api.native.indices import Ablate, EncoderHead, ablated_heads, selected_index
from service.api.native.replies import TextResult, Usage
from service.api.native.texts import TextRequest, text_bytes, text_fields, usage, with_pictures
from service.api.wire.json_pieces import object_pieces
from service.api.wire.media import JSON, JSON_BYTES_PER_FLOAT, Unwritten
from service.api.wire.problems import PROBLEMS
from service.api.wire.reply_headers import WarnedReply, warning_field
from service.api.wire.route import (
    ApiExchange,
    JsonRoute,
    PartsResponse,
    caller_of,
    reserve,
)
from service.inference.attention.map_parts import MapPart, places
from service.inference.attention.selection import AttentionSelection
from service.inference.encoding import PreparedTexts
from service.inference.head_scores import (
    ComparedText,
    check_lengths,
    compare,
    require_scores,
    working_bytes,
)
from service.inference.tokenization.text import Text

FEWER = "ask for fewer texts, queries or keys"

router = APIRouter(route_class=JsonRoute, tags=["inference"])


class HeadScoresRequest(TextRequest):
    """Request body of `POST /attention/scores`."""

    layer: int = Field(description="Layer 0 … L−1, negative from the end.")
    head: int = Field(description="Head 0 … N−1, negative from the end.")
    queries: Places = Field(
        None,
        description="Query tokens, 0 … S−1, negative from the end of each text; of a picture also "
        "patches as [row, column] and special tokens by name; all by default.",
    )
    keys: Places = Field(None, description="Key tokens, counted as `queries`; all by default.")
    ablate: Ablate[EncoderHead] = Field(
        None, description="Heads of the encoder whose output is set to zero."
    )


class HeadScoresResult(TextResult):
    """Queries, keys and scores of the head in one text."""

    queries: list[int] | None = Field(None, description="Requested queries, non-negative.")
    keys: list[int] | None = Field(None, description="Requested keys, non-negative.")
    query_vectors: list[list[float]] = Field(description="`[Q][p]`, as they enter the score.")
    key_vectors: list[list[float]] = Field(description="`[K][p]`, as they enter the score.")
    scores: list[list[float]] = Field(description="`[Q][K]`, before normalisation.")
    weights: list[list[float]] = Field(description="`[Q][K]`; a row over all keys sums to 1.")


class HeadScoresReply(WarnedReply):
    """Reply of `POST /attention/scores`."""

    model: str
    backend: str
    layer: int
    head: int
    scale: float | None = Field(
        description="Factor of the score: Σ_i q_i · k_i · scale, plus the bias of relative "
        "positions; null if the score is not a sum of products."
    )
    results: list[HeadScoresResult]
    usage: Usage


@router.post(
    "/attention/scores",
    response_model=None,
    responses={200: {"model": HeadScoresReply}, **PROBLEMS},
)
async def head_scores(body: HeadScoresRequest, exchange: ApiExchange) -> Response:
    """Return the queries, keys, scores and weights of one head."""
    body = await with_pictures(body, exchange)
    model = exchange.model
    inference = model.tower(body.inputs).inference
    require_scores(inference)
    selection = head_selection(body, inference.config)
    prepared = await inference.prepare(
        body.inputs, body.options, caller_of(exchange), "attention", body.backend
    )
    check_lengths(prepared)
    check_places(selection, prepared.texts)
    ((layer,), (head,)) = selection.maps["encoder"]
    size = reply_bytes(prepared.texts, selection.part, inference.config.head_size)
    names = {
        "model": model.name,
        "backend": prepared.engine,
        "layer": layer,
        "head": head,
        "scale": scale(inference.config),
        **warning_field(prepared.timings.warnings),
    }
    held = size + working_bytes(inference, prepared)
    reserve(exchange, size, held=held, advice=FEWER)
    compared = await compare(prepared, selection)
    pieces = reply_pieces(names, prepared, selection.part, compared)
    return PartsResponse([pieces], JSON, prepared.timings)


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


def reply_pieces(
    names: dict[str, object],
    prepared: PreparedTexts,
    part: MapPart,
    compared: Sequence[ComparedText],
) -> Unwritten:
    """Yield the JSON reply."""
    asked = {"queries": part.queries, "keys": part.keys}
    yield orjson.dumps({**names, "results": []}).removesuffix(b"]}")
    for number, (text, scores) in enumerate(zip(prepared.texts, compared, strict=True)):
        fields = text_fields(text) | {
            name: places(values, len(text.input_ids))
            for name, values in asked.items()
            if values is not None
        }
        fields |= {
            "query_vectors": scores.queries,
            "key_vectors": scores.keys,
            "scores": scores.scores,
            "weights": scores.weights,
        }
        if number:
            yield b","
        yield from object_pieces(fields)
    yield b'],"usage":' + orjson.dumps(usage(prepared.texts)) + b"}"
