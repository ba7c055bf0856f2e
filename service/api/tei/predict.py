"""`POST /predict`: labels of texts or of their spans, in text-embeddings-inference's format.

Notation: S tokens of one text, C labels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from model.numerics.task_head import TaskConfig, TaskKind
from service.api.drop_in.embedding import check_given
from service.api.tei.errors import ERRORS
from service.api.tei.spans import LabelledSpan, labelled, single_texts, span_bytes
from service.api.tei.texts import TeiRequest, add_compute_headers
from service.api.wire.reserved import reserve
from service.api.wire.route import JsonRoute, caller_of, model_of
from service.engines.contract import Floats
from service.errors import Unprocessable
from service.inference.core import Inference
from service.inference.tasks.spans import Aggregation, Grouping, TokenLabels, spans
from service.inference.tasks.task_heads import probabilities, required_task, task_scores
from service.inference.tokenization.inputs import Input

router = APIRouter(route_class=JsonRoute, tags=["tasks"])
PREDICTION_BYTES = 40
"""Predicted bytes of a label's score in JSON, without the label."""
_KINDS: tuple[TaskKind, ...] = ("sequence_classification", "token_classification")
_CLASSIFIER = "a classifier (…ForSequenceClassification or …ForTokenClassification)"
_FORMS = "a text, a pair of texts, or a list of such lists is needed: [[text], [text, text], …]"


class PredictInputs(NamedTuple):
    """Texts and pairs, and whether the request sent a batch."""

    texts: list[Input]
    batch: bool


def _inputs(value: object) -> PredictInputs:
    """Parse a text, `[text]` or `[text, text]` as one input, and a list of lists as a batch."""
    if isinstance(value, str):
        return PredictInputs([value], batch=False)
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("inputs", _FORMS)
    if isinstance(value[0], str):
        return PredictInputs([_sequence(value)], batch=False)
    return PredictInputs([_sequence(item) for item in value], batch=True)


def _sequence(value: object) -> Input:
    match value:
        case [str(text)]:
            return text
        case [str(first), str(second)]:
            return first, second
    raise PydanticCustomError("inputs", _FORMS)


_SEQUENCE = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}


class PredictRequest(TeiRequest):
    """Request body of `POST /predict`."""

    inputs: Annotated[
        PredictInputs,
        PlainValidator(_inputs),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string"},
                    _SEQUENCE,
                    {"type": "array", "items": _SEQUENCE, "minItems": 1},
                ],
                "title": "Inputs",
                "examples": ["What is Deep Learning?"],
            }
        ),
    ] = Field(description="A text, a pair, or a batch of both.")
    raw_scores: bool = Field(
        False,
        description="Logits without softmax or sigmoid; for tokens only with aggregation none.",
    )
    aggregation: Aggregation | None = Field(
        None,
        description="For token classifiers: none labels each token; simple, the default, merges "
        "adjacent tokens with the same label; first, average and max label words by their first "
        "token, by the mean of their tokens or by their highest-scoring token.",
    )

    def check_model(self, inference: Inference) -> TaskConfig:
        """Return the model's task head.

        Raises:
            NoTaskHead: the model is not a classifier.

        """
        return required_task(inference.manifest, _KINDS, _CLASSIFIER)


class Prediction(BaseModel):
    """Label and its score."""

    score: float
    label: str


Predictions = list[Prediction] | list[LabelledSpan]


@router.post(
    "/predict",
    response_model=None,
    responses={200: {"model": Predictions | list[Predictions]}, **ERRORS},
)
async def predict(body: PredictRequest, request: Request) -> Response:
    """Classify each text, the largest score first: softmax of several labels, sigmoid of one.

    A token classifier returns the labelled spans of each text, in order.
    """
    inference = model_of(request).inference
    task = body.check_model(inference)
    answer = _of_tokens if task.kind == "token_classification" else _of_texts
    response = await answer(body, request, inference, task)
    return add_compute_headers(response, request, body.inputs.texts)


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
            results = [predictions(row, task.labels, raw=body.raw_scores) for row in logits]
            return results if body.inputs.batch else results[0]

        return await reply.json(content, prepared.timings)


async def _of_tokens(
    body: PredictRequest, request: Request, inference: Inference, task: TaskConfig
) -> Response:
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


def predictions(logits: Floats, labels: Sequence[str], *, raw: bool) -> list[dict[str, object]]:
    """Return each label with its score, the largest first; ties keep the order of the labels."""
    scores = logits if raw else probabilities(logits)
    order = np.argsort(-logits, kind="stable")
    return [{"score": scores[label], "label": labels[label]} for label in order]
