"""`POST /predict`: the scores of a classifier's labels, in text-embeddings-inference's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from model.artifact.task import TaskConfig
from service.api.route import JsonRoute, caller_of, model_of
from service.api.tei.errors import ERRORS
from service.api.tei.texts import TeiRequest, respond
from service.engines.contract import Floats
from service.inference.core import Inference
from service.inference.excerpt import Input
from service.inference.task_heads import probabilities, required_task, task_scores

router = APIRouter(route_class=JsonRoute, tags=["tasks"])
PREDICTION_BYTES = 40
"""Of a label's score in JSON, beside its name."""
_CLASSIFIER = "a classifier (…ForSequenceClassification)"
_FORMS = "a text, a pair of texts, or a list of such lists is needed: [[text], [text, text], …]"


class PredictInputs(NamedTuple):
    """Texts and pairs, and whether they came as a list."""

    texts: list[Input]
    batch: bool


def _inputs(value: Any) -> PredictInputs:
    """A text, `[text]` or `[text, text]` alone; lists of such are a batch."""
    if isinstance(value, str):
        return PredictInputs([value], batch=False)
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("inputs", _FORMS)
    if isinstance(value[0], str):
        return PredictInputs([_sequence(value)], batch=False)
    return PredictInputs([_sequence(item) for item in value], batch=True)


def _sequence(value: Any) -> Input:
    match value:
        case [str(text)]:
            return text
        case [str(first), str(second)]:
            return first, second
    raise PydanticCustomError("inputs", _FORMS)


_SEQUENCE = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}


class PredictRequest(TeiRequest):
    """`POST /predict`."""

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
    raw_scores: bool = Field(False, description="Logits, without softmax or sigmoid.")

    def check_model(self, inference: Inference) -> TaskConfig:
        """The task head.

        Raises:
            NoTaskHead: the model is no classifier.

        """
        return required_task(inference.manifest, "sequence_classification", _CLASSIFIER)


class Prediction(BaseModel):
    """A label and its score."""

    score: float
    label: str


@router.post(
    "/predict",
    response_model=None,
    responses={200: {"model": list[Prediction] | list[list[Prediction]]}, **ERRORS},
)
async def predict(body: PredictRequest, request: Request) -> Response:
    """The labels of each text, the largest score first: softmax of several, sigmoid of one."""
    inference, caller = model_of(request).inference, caller_of(request)
    task = body.check_model(inference)
    prepared = await inference.prepare(body.inputs.texts, body.options(), caller, "encode")
    logits = await task_scores(prepared, task)
    labels = sum(PREDICTION_BYTES + 2 * len(label) for label in task.labels)

    def content() -> Any:
        found = [predictions(one, task.labels, raw=body.raw_scores) for one in logits]
        return found if body.inputs.batch else found[0]

    return await respond(request, labels * len(logits), content, prepared.timings)


def predictions(logits: Floats, labels: Sequence[str], *, raw: bool) -> list[dict[str, Any]]:
    """Each label with its score, the largest first; of equal ones the first label."""
    scores = logits if raw else probabilities(logits)
    order = np.argsort(-logits, kind="stable")
    return [{"score": scores[label], "label": labels[label]} for label in order]
