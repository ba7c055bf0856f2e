"""`POST /pooling`: what a model's pooler gives of each text, in vLLM's form.

Notation: S tokens of one text, H hidden size, D features of a vector, C labels.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Literal

import numpy as np
import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from model.artifact.task import TaskKind
from service.api.drop_in.embedding import (
    BASE64_BYTES_PER_FLOAT,
    ListForm,
    TextsOrIds,
    check_embedder,
    check_given,
)
from service.api.drop_in.prompts import without_prompt
from service.api.drop_in.reserved import reserve, respond_pieces
from service.api.vllm.errors import ERRORS
from service.api.vllm.fields import Usage, VllmRequest, envelope
from service.api.wire.json_pieces import vector_pieces
from service.api.wire.media import JSON_BYTES_PER_FLOAT, Unwritten
from service.api.wire.notices import NoticedReply
from service.api.wire.route import JsonRoute, caller_of, model_of
from service.engines.contract import Floats
from service.errors import NoTaskHead, Unprocessable
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions, PreparedTexts
from service.inference.tasks.task_heads import task_scores
from service.inference.timings import Timings

router = APIRouter(route_class=JsonRoute, tags=["vllm"])
ITEM_BYTES = 64
"""Of a text's vector or matrix in JSON beside its numbers."""
PoolingTask = Literal["embed", "token_embed", "classify", "token_classify"]
TASKS: dict[TaskKind | None, tuple[PoolingTask, ...]] = {
    None: ("embed", "token_embed"),
    "sequence_classification": ("classify",),
    "token_classification": ("token_classify",),
    "late_interaction": ("token_embed",),
}
"""What a model with each task head is asked for; the first unless a request says otherwise."""


class PoolingRequest(VllmRequest):
    """`POST /pooling`."""

    input: TextsOrIds = Field(
        description="A text, token ids of the model's own tokenizer, or a list of either."
    )
    task: PoolingTask | None = Field(
        None, description="A vector or labels of each text, or of each of its tokens."
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64 = little-endian float32, row-major."
    )

    def check_model(self, inference: Inference) -> PoolingTask:
        """The task that is computed.

        Raises:
            NoTaskHead: the model does not do it.

        """
        task = inference.manifest.task
        kind = task.kind if task else None
        if kind not in TASKS:
            check_embedder(inference)
        known = TASKS[kind]
        if self.task is not None and self.task not in known:
            raise NoTaskHead(
                f"{inference.manifest.model} has no task {self.task}; it has {', '.join(known)}"
            )
        if kind == "late_interaction" and self.use_activation is False:
            raise Unprocessable("use_activation: this model's token vectors are unit vectors")
        return self.task or known[0]


class PoolingItem(BaseModel):
    """What the pooler gives of a text, by its number in the request."""

    index: int
    object: Literal["pooling"] = "pooling"
    data: list[list[float]] | list[float] | str


class PoolingReply(NoticedReply):
    """One item a text, in the order of the request."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[PoolingItem]
    usage: Usage


@router.post("/pooling", response_model=None, responses={200: {"model": PoolingReply}, **ERRORS})
async def pooling(body: PoolingRequest, request: Request) -> Response:
    """A vector or probabilities of each text, or of each of its tokens."""
    model, caller = model_of(request), caller_of(request)
    inference = model.inference
    task = body.check_model(inference)
    check_given(body.input, "input")
    body.check_length(inference.tokenizer.limits.max_tokens)
    options = body.options("input[{}]", without_prompt(inference))
    options = replace(options, ids_as_given=True)
    prepared = await inference.prepare(body.input, options, caller, "encode")
    await body.cut(prepared)
    form = list_form(body, request, model.name)
    features = _features(inference, task)
    rows = prepared.timings.tokens if task.startswith("token_") else len(prepared.texts)
    size = round(form.float_bytes * rows * features) + form.item_bytes * len(prepared.texts)
    with reserve(request, size) as held:
        arrays = await _arrays(inference, prepared, task, body.use_activation)
        timings = prepared.timings
        return respond_pieces(held, form.pieces(arrays, timings), timings)


def _features(inference: Inference, task: PoolingTask) -> int:
    """Numbers of a row: D, H or C."""
    head = inference.manifest.task
    if head is not None:
        return head.outputs
    return inference.vectors.kept() if task == "embed" else inference.config.hidden_size


async def _arrays(
    inference: Inference, prepared: PreparedTexts, task: PoolingTask, activation: bool | None
) -> list[Floats]:
    """`[D]` or `[C]` a text, or `[S, H]`, `[S, D]` or `[S, C]`.

    Args:
        inference: of the model.
        prepared: the texts.
        task: what is computed.
        activation: whether vectors become unit vectors, and logits probabilities; of vectors the
            checkpoint's own choice when None, of logits yes.

    """
    head = inference.manifest.task
    if head is not None:
        outputs = await task_scores(prepared, head)
        if activation is False or head.kind == "late_interaction":
            return outputs
        return await asyncio.to_thread(lambda: [probabilities(output) for output in outputs])
    tokens, last = task == "token_embed", inference.config.num_hidden_layers
    options = EncodeOptions(last, tokens=tokens, pooled=not tokens, normalize=activation)
    encodings = await inference.encode(prepared, options)
    arrays = [one.tokens if tokens else one.pooled for one in encodings]
    found = [np.ascontiguousarray(array) for array in arrays if array is not None]
    unit = inference.sentence.normalize if activation is None else activation
    if not (tokens and unit):
        return found
    return await asyncio.to_thread(lambda: [_unit_rows(array) for array in found])


def _unit_rows(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, np.float32(1e-12))


def probabilities(logits: Floats) -> Floats:
    """Of logits `[…, C]`: softmax of several labels, sigmoid of one."""
    wide = logits.astype(np.float64)
    if wide.shape[-1] == 1:
        return np.exp(-np.logaddexp(0, -wide)).astype(np.float32)
    shares = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return (shares / shares.sum(axis=-1, keepdims=True)).astype(np.float32)


def list_form(body: PoolingRequest, request: Request, model: str) -> ListForm:
    """The list of what a model gives."""
    as_base64 = body.encoding_format == "base64"

    def item(number: int, array: Floats) -> Unwritten:
        yield b'{"index":%d,"object":"pooling","data":' % number
        yield from vector_pieces(array, as_base64=as_base64)
        yield b"}"

    def closing(timings: Timings) -> bytes:
        return b"]," + orjson.dumps(envelope(request, "pooling", model, timings))[1:]

    return ListForm(
        b'{"data":[',
        item,
        closing,
        ITEM_BYTES,
        BASE64_BYTES_PER_FLOAT if as_base64 else JSON_BYTES_PER_FLOAT,
    )
