"""`POST /predict`: labels of texts, pictures or spans, in text-embeddings-inference's format.

Notation: S tokens of one text, C labels.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from model.numerics.task_head import TaskConfig
from service.api.drop_in.embedding import check_given
from service.api.tei.predict_fields import (
    PREDICTION_BYTES,
    Predictions,
    PredictRequest,
    labelled,
    predictions,
    single_texts,
    span_bytes,
)
from service.api.tei.texts import ERRORS, add_compute_headers
from service.api.wire.picture_forms import OPENAPI
from service.api.wire.pictures import loaded
from service.api.wire.reserved import reserve
from service.api.wire.route import JsonRoute, caller_of, model_of
from service.errors import Unprocessable
from service.inference.core import Inference
from service.inference.tasks.spans import Grouping, TokenLabels, spans
from service.inference.tasks.task_heads import (
    ZeroShot,
    label_texts,
    probabilities,
    sigmoid,
    softmax,
    task_scores,
)
from service.inference.tokenization.inputs import Picture

router = APIRouter(route_class=JsonRoute, tags=["tasks"])


@router.post(
    "/predict",
    response_model=None,
    responses={200: {"model": Predictions | list[Predictions]}, **ERRORS},
    openapi_extra=OPENAPI,
)
async def predict(body: PredictRequest, request: Request) -> Response:
    """Classify each input, the largest score first: softmax of several labels, sigmoid of one.

    A token classifier returns the labelled spans of each text, in order. With `labels`, a model
    with two towers scores each picture by them: softmax with CLIP, sigmoid with SigLIP.
    """
    inputs = body.inputs._replace(texts=await loaded(body.inputs.texts, request))
    body = body.model_copy(update={"inputs": inputs})
    if body.labels is not None or model_of(request).vision is not None:
        response = await _by_labels(body, request)
    else:
        if body.template is not None:
            raise Unprocessable("template is for `labels`: add them, or leave it out")
        inference = model_of(request).inference
        task = body.check_model(inference)
        answer = _of_tokens if task.kind == "token_classification" else _of_texts
        response = await answer(body, request, inference, task)
    return add_compute_headers(response, request, inputs.texts)


async def _of_texts(
    body: PredictRequest, request: Request, inference: Inference, task: TaskConfig
) -> Response:
    if body.aggregation is not None:
        raise Unprocessable("aggregation applies to token labels; this model labels whole texts")
    texts, caller = body.inputs.texts, caller_of(request)
    check_given(texts, "inputs")
    prepared = await inference.prepare(texts, body.options(request), caller, "encode")
    size = len(texts) * sum(PREDICTION_BYTES + 2 * len(label) for label in task.labels)
    with reserve(request, size) as reply:
        logits = await task_scores(prepared, task)

        def content() -> object:
            results = [
                predictions(row, task.labels, row if body.raw_scores else probabilities(row))
                for row in logits
            ]
            results = [result[: body.top_k] for result in results]
            return results if body.inputs.batch else results[0]

        return await reply.json(content, prepared.timings)


async def _of_tokens(
    body: PredictRequest, request: Request, inference: Inference, task: TaskConfig
) -> Response:
    if body.top_k is not None:
        raise Unprocessable("top_k applies to labels of whole texts; this model labels tokens")
    aggregation = body.aggregation or "simple"
    if body.raw_scores and aggregation != "none":
        raise Unprocessable('raw_scores apply to single tokens: send "aggregation": "none"')
    texts, caller = single_texts(body.inputs.texts), caller_of(request)
    prepared = await inference.prepare(texts, body.options(request), caller, "encode")
    size = span_bytes(texts, prepared.texts, task)
    with reserve(request, size) as reply:
        logits = await task_scores(prepared, task)
        grouping = Grouping(aggregation, task.labels, raw=body.raw_scores)

        def label_spans() -> list[list[dict[str, object]]]:
            labels = map(TokenLabels, texts, prepared.texts, logits)
            subwords = inference.tokenizer.subwords
            return [labelled(text.text, spans(text, grouping, subwords)) for text in labels]

        content = await asyncio.to_thread(label_spans)
        answer = content if body.inputs.batch else content[0]
        return await reply.json(lambda: answer, prepared.timings)


async def _by_labels(body: PredictRequest, request: Request) -> Response:
    """Score pictures by the labels of the request."""
    model, labels, pictures = model_of(request), body.labels, body.inputs.texts
    dual = model.artifact.manifest.dual
    if model.vision is None or dual is None:
        raise Unprocessable("labels: this model has labels of its own, or none: leave them out")
    if labels is None:
        raise Unprocessable("labels: this model has none of its own: name those to choose from")
    if body.aggregation is not None:
        raise Unprocessable("aggregation applies to token labels, not to `labels`")
    for index, given in enumerate(pictures):
        if not isinstance(given, Picture):
            raise Unprocessable(f"inputs[{index}] is no picture: `labels` are for pictures")
    check_given(pictures, "inputs")
    texts, caller = label_texts(labels, body.template), caller_of(request)
    towers = model.vision.inference, model.inference
    named = await towers[1].prepare(
        texts, body.options(request, naming="labels[{}]"), caller, "encode"
    )
    seen = await towers[0].prepare(pictures, body.options(request), caller, "encode")
    size = len(pictures) * sum(PREDICTION_BYTES + 2 * len(label) for label in labels)
    held = size + 4 * model.inference.vectors.size() * (len(pictures) + len(labels))
    with reserve(request, size, held=held, advice=None) as reply:
        logits = await ZeroShot(dual, towers, (seen, named)).logits()
        scores = softmax if dual.kind == "clip" else sigmoid

        def content() -> object:
            results = [
                predictions(row, labels, row if body.raw_scores else scores(row))[: body.top_k]
                for row in logits
            ]
            return results if body.inputs.batch else results[0]

        return await reply.json(content, seen.timings + named.timings)
