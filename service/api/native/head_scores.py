"""`POST /attention/scores`: what one head compares to come to its weights."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from model.config.encoder import EncoderConfig
from service.api.native.indices import (
    Ablate,
    EncoderHead,
    Indices,
    ablated_heads,
    selected_index,
)
from service.api.native.map_parts import check_axis
from service.api.native.replies import TextResult, Usage
from service.api.native.texts import (
    TextRequest,
    check_size,
    text_bytes,
    text_fields,
    usage,
)
from service.api.wire.json_pieces import object_pieces
from service.api.wire.media import JSON, JSON_BYTES_PER_FLOAT, Unwritten
from service.api.wire.notices import NoticedReply, notice_field
from service.api.wire.problems import PROBLEMS
from service.api.wire.route import (
    JsonRoute,
    PartsResponse,
    Reply,
    caller_of,
    model_of,
    service_of,
)
from service.inference.attention.map_parts import MapPart, places
from service.inference.encoding import PreparedTexts
from service.inference.head_scores import (
    ComparedText,
    HeadSelection,
    check_lengths,
    compare,
    require_scores,
    working_bytes,
)
from service.inference.tokenization.tokenizer import TokenizedText

FEWER = "ask for fewer texts, queries or keys"

router = APIRouter(route_class=JsonRoute, tags=["inference"])


class HeadScoresRequest(TextRequest):
    """`POST /attention/scores`."""

    layer: int = Field(description="0 … L−1, negative from the end.")
    head: int = Field(description="0 … N−1, negative from the end.")
    queries: Indices = Field(
        None,
        description="Tokens that look, 0 … S−1, negative from the end of each text; all by "
        "default.",
    )
    keys: Indices = Field(None, description="Tokens that are looked at, likewise.")
    ablate: Ablate[EncoderHead] = Field(
        None, description="Heads of the encoder whose output is multiplied by zero."
    )


class HeadScoresResult(TextResult):
    """What the head compares in one text."""

    queries: list[int] | None = Field(None, description="As asked for, counted from the first.")
    keys: list[int] | None = Field(None, description="Likewise.")
    query_vectors: list[list[float]] = Field(description="`[Q][p]`, as they enter the score.")
    key_vectors: list[list[float]] = Field(description="`[K][p]`, likewise.")
    scores: list[list[float]] = Field(description="`[Q][K]`: what is normalised.")
    weights: list[list[float]] = Field(description="`[Q][K]`: a row of all keys sums to 1.")


class HeadScoresReply(NoticedReply):
    """The reply of `POST /attention/scores`."""

    model: str
    backend: str
    layer: int
    head: int
    scale: float | None = Field(
        description="Σ_i q_i · k_i · scale is the score, less what relative positions add; null "
        "where a score is no sum of products."
    )
    results: list[HeadScoresResult]
    usage: Usage


@router.post(
    "/attention/scores",
    response_model=None,
    responses={200: {"model": HeadScoresReply}, **PROBLEMS},
)
async def head_scores(body: HeadScoresRequest, request: Request) -> Response:
    """What one head compares to come to its weights: queries, keys and scores."""
    model, state = model_of(request), service_of(request)
    inference = model.inference
    require_scores(inference)
    selection = head_selection(body, inference.config)
    prepared = await inference.prepare(
        body.inputs, body.options, caller_of(request), "attention", body.backend
    )
    check_lengths(prepared)
    check_tokens(selection.part, prepared.texts)
    size = reply_bytes(prepared.texts, selection.part, inference.config.head_size)
    check_size(size, state.settings.max_response_bytes, FEWER, binary=True)
    head = {
        "model": model.name,
        "backend": prepared.engine,
        "layer": selection.layer,
        "head": selection.head,
        "scale": scale(inference.config),
        **notice_field(prepared.timings.notices),
    }
    with contextlib.ExitStack() as held:
        held.enter_context(state.replies.hold(size + working_bytes(inference, prepared)))
        request.state.predicted_bytes = size
        found = await compare(prepared, selection)
        pieces = reply_pieces(head, prepared, selection.part, found)
        release = held.pop_all().close
    return PartsResponse(Reply([pieces], JSON, prepared.timings, release=release))


def head_selection(request: HeadScoresRequest, config: EncoderConfig) -> HeadSelection:
    """The head and the tokens that a request asks for, its numbers counted from the first.

    Raises:
        Unprocessable: a layer or head that there is not.

    """
    queries, keys = (
        None if asked is None else tuple(asked) for asked in (request.queries, request.keys)
    )
    return HeadSelection(
        selected_index("layer", request.layer, config.num_hidden_layers),
        selected_index("head", request.head, config.num_attention_heads),
        MapPart(queries, keys),
        ablated_heads(request.ablate, "encoder", config, ""),
    )


def scale(config: EncoderConfig) -> float | None:
    """What each product of features is multiplied by in the score: 1/√p (Vaswani et al. 2017).

    None of scores that are no sum of products.
    """
    if config.attention_score != "scaled_dot_product":
        return None
    return 1 / math.sqrt(config.head_size)


def check_tokens(part: MapPart, texts: Sequence[TokenizedText]) -> None:
    """Refuse queries and keys that a text does not have, or has twice.

    Raises:
        Unprocessable: the message names the text.

    """
    for index, text in enumerate(texts):
        for name, asked in (("queries", part.queries), ("keys", part.keys)):
            if asked is not None:
                check_axis(name, asked, len(text.input_ids), f"inputs[{index}]")


def reply_bytes(texts: Sequence[TokenizedText], part: MapPart, size: int) -> int:
    """Bytes predicted for the reply, of a head with queries and keys of so many features."""
    numbers = 0
    for text in texts:
        rows, columns = part.shape(*[len(text.input_ids)] * 2)
        numbers += (rows + columns) * (size + 1) + 2 * rows * columns
    return JSON_BYTES_PER_FLOAT * numbers + text_bytes(texts)


def reply_pieces(
    head: dict[str, Any], prepared: PreparedTexts, part: MapPart, found: Sequence[ComparedText]
) -> Unwritten:
    """The reply in JSON."""
    asked = {"queries": part.queries, "keys": part.keys}
    yield orjson.dumps({**head, "results": []}).removesuffix(b"]}")
    for number, (text, one) in enumerate(zip(prepared.texts, found, strict=True)):
        fields = text_fields(text) | {
            name: places(values, len(text.input_ids))
            for name, values in asked.items()
            if values is not None
        }
        fields |= {
            "query_vectors": one.queries,
            "key_vectors": one.keys,
            "scores": one.scores,
            "weights": one.weights,
        }
        if number:
            yield b","
        yield from object_pieces(fields)
    yield b'],"usage":' + orjson.dumps(usage(prepared.texts)) + b"}"
