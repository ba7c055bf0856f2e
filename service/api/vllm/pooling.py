"""`POST /pooling`: pooler outputs of texts, in vLLM's format.

Notation: S tokens of one text, H hidden size, D features of a vector, C labels.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Literal

import numpy as np
import orjson
from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from model.numerics.task_head import TaskKind
from service.api.drop_in.embedding import (
    BASE64_BYTES_PER_FLOAT,
    ListForm,
    check_embedder,
    check_given,
    without_prompts,
)
from service.api.drop_in.prompts import without_prompt
from service.api.vllm.fields import ERRORS, MessagesRequest, Usage, envelope
from service.api.wire.json_pieces import vector_pieces
from service.api.wire.media import JSON, JSON_BYTES_PER_FLOAT, Unwritten
from service.api.wire.pictures import loaded
from service.api.wire.reply_headers import WarnedReply
from service.api.wire.route import (
    ApiExchange,
    JsonRoute,
    PartsResponse,
    caller_of,
    reserve,
)
from service.engines.contract import Floats
from service.errors import NoTaskHead, Unprocessable
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions, PreparedTexts
from service.inference.tasks.task_heads import task_scores
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Picture

router = APIRouter(route_class=JsonRoute, tags=["vllm"])
ITEM_BYTES = 64
"""Predicted bytes of an item in JSON, without its numbers."""
PoolingTask = Literal["embed", "token_embed", "classify", "token_classify"]
TASKS: dict[TaskKind | None, tuple[PoolingTask, ...]] = {
    None: ("embed", "token_embed"),
    "sequence_classification": ("classify",),
    "token_classification": ("token_classify",),
    "late_interaction": ("token_embed",),
    "hybrid": ("embed", "token_embed"),
}
"""Task head → pooling tasks that the model supports, the default first."""


class PoolingRequest(MessagesRequest):
    """Request body of `POST /pooling`."""

    task: PoolingTask | None = Field(None, description="Vectors or labels, of texts or of tokens.")
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64 = little-endian float32, row-major."
    )

    def check_model(self, inference: Inference) -> PoolingTask:
        """Return the pooling task to compute."""
        task = inference.manifest.task
        kind = task.kind if task else None
        if kind not in TASKS:
            check_embedder(inference)
        known = TASKS[kind]
        if self.task is not None and self.task not in known:
            raise NoTaskHead(
                f"{inference.manifest.model} has no task {self.task}; it has {', '.join(known)}"
            )
        wanted = self.task or known[0]
        multivector = task is not None and "multivector" in task.vectors
        if multivector and wanted == "token_embed" and self.use_activation is False:
            raise Unprocessable("use_activation: this model's token vectors are unit vectors")
        return wanted


class PoolingItem(BaseModel):
    """Pooler output of a text, and the text's index in the request."""

    index: int
    object: Literal["pooling"] = "pooling"
    data: list[list[float]] | list[float] | str


class PoolingReply(WarnedReply):
    """Pooler outputs, in the order of the request."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[PoolingItem]
    usage: Usage


@router.post("/pooling", response_model=None, responses={200: {"model": PoolingReply}, **ERRORS})
async def pooling(body: PoolingRequest, exchange: ApiExchange) -> Response:
    """Return a vector or probabilities of each text or of each of its tokens."""
    model, caller = exchange.model, caller_of(exchange)
    task = body.check_model(model.inference)
    body.check_messages(model)
    check_given(body.given, "input")
    inputs = await loaded(body.given, exchange)
    inference = model.tower(inputs).inference
    body.check_length(inference.limits.max_tokens)
    options = body.options("input[{}]", without_prompt(inference))
    options = replace(options, ids_as_given=True)
    if isinstance(inputs[0], Picture):
        options = without_prompts(options)
    prepared = await inference.prepare(inputs, options, caller, "encode")
    await body.cut(prepared)
    form = list_form(body, exchange, model.name)
    features = _features(inference, task)
    rows = prepared.timings.tokens if task.startswith("token_") else len(prepared.texts)
    size = round(form.float_bytes * rows * features) + form.item_bytes * len(prepared.texts)
    reserve(exchange, size)
    arrays = await _arrays(inference, prepared, task, body.use_activation)
    timings = prepared.timings
    return PartsResponse([form.pieces(arrays, timings)], JSON, timings)


def _features(inference: Inference, task: PoolingTask) -> int:
    """Return the number of features in a row: D, H or C."""
    head = inference.manifest.task
    if head is not None and head.kind != "hybrid":
        return head.outputs
    if head is not None and task == "token_embed":
        return head.outputs - 1
    return inference.vectors.kept() if task == "embed" else inference.config.hidden_size


async def _arrays(
    inference: Inference, prepared: PreparedTexts, task: PoolingTask, activation: bool | None
) -> list[Floats]:
    """Compute the pooler output of each text: `[D]`, `[C]`, `[S, H]`, `[S, D]` or `[S, C]`.

    Args:
        inference: inference of the model.
        prepared: tokenised texts.
        task: pooling task.
        activation: whether to normalise vectors and to convert logits to probabilities. None is
            the checkpoint's own choice for vectors, and true for logits.

    """
    head = inference.manifest.task
    if head is not None and head.kind != "hybrid":
        outputs = await task_scores(prepared, head)
        if activation is False or head.kind == "late_interaction":
            return outputs
        return await asyncio.to_thread(lambda: [probabilities(output) for output in outputs])
    tokens, output = task == "token_embed", "pooled"
    if tokens:
        output = "multivector" if head else "tokens"
    encodings = await inference.encode(prepared, EncodeOptions((output,), normalize=activation))
    arrays = [np.ascontiguousarray(array) for own in encodings for array in own.values()]
    unit = inference.sentence.normalize if activation is None else activation
    if head is not None or not (tokens and unit):
        return arrays
    return await asyncio.to_thread(lambda: [_unit_rows(array) for array in arrays])


def _unit_rows(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, np.float32(1e-12))


def probabilities(logits: Floats) -> Floats:
    """Convert logits `[…, C]` to probabilities: softmax of several labels, sigmoid of one."""
    wide = logits.astype(np.float64)
    if wide.shape[-1] == 1:
        return np.exp(-np.logaddexp(0, -wide)).astype(np.float32)
    shares = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return (shares / shares.sum(axis=-1, keepdims=True)).astype(np.float32)


def list_form(body: PoolingRequest, exchange: ApiExchange, model: str) -> ListForm:
    """Return vLLM's format of a list of pooler outputs."""
    as_base64 = body.encoding_format == "base64"

    def item(number: int, array: Floats) -> Unwritten:
        yield b'{"index":%d,"object":"pooling","data":' % number
        yield from vector_pieces(array, as_base64=as_base64)
        yield b"}"

    def closing(timings: Timings) -> bytes:
        return b"]," + orjson.dumps(envelope(exchange, "pooling", model, timings))[1:]

    return ListForm(
        b'{"data":[',
        item,
        closing,
        ITEM_BYTES,
        BASE64_BYTES_PER_FLOAT if as_base64 else JSON_BYTES_PER_FLOAT,
    )
