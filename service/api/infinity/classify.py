"""`POST /classify`: the labels of texts, in Infinity's format."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from model.numerics.task_head import TaskConfig, TaskKind
from service.api.infinity.errors import ERRORS
from service.api.infinity.fields import InfinityReply, InfinityRequest, Texts, envelope
from service.api.tei.predict_fields import PREDICTION_BYTES, predictions
from service.api.wire.reserved import reserve
from service.api.wire.route import JsonRoute, caller_of, model_of
from service.inference.core import Inference
from service.inference.tasks.task_heads import probabilities, required_task, task_scores
from service.inference.tokenization.tokenizer import Options

router = APIRouter(route_class=JsonRoute, tags=["infinity"])
_KINDS: tuple[TaskKind, ...] = ("sequence_classification",)
_CLASSIFIER = "a classifier (…ForSequenceClassification)"
_CUT = Options(truncate=True, naming="input[{}]")


class ClassifyRequest(InfinityRequest):
    """Request body of `POST /classify`."""

    input: Texts = Field(description="Texts to classify; long texts are cut.")
    raw_scores: bool = Field(
        False, description="Accepted without effect, as in Infinity; `/predict` returns logits."
    )

    def check_model(self, inference: Inference) -> TaskConfig:
        """Return the model's task head."""
        return required_task(inference.manifest, _KINDS, _CLASSIFIER)


class Label(BaseModel):
    """Label and its score."""

    score: float
    label: str


class ClassifyReply(InfinityReply):
    """Labels of each text."""

    object: Literal["classify"] = "classify"
    data: list[list[Label]]


@router.post("/classify", response_model=None, responses={200: {"model": ClassifyReply}, **ERRORS})
async def classify(body: ClassifyRequest, request: Request) -> Response:
    """Classify each text, the largest score first: softmax of several labels, sigmoid of one."""
    model, caller = model_of(request), caller_of(request)
    task = body.check_model(model.inference)
    prepared = await model.inference.prepare(body.input, _CUT, caller, "encode")
    size = len(body.input) * sum(PREDICTION_BYTES + 2 * len(label) for label in task.labels)
    with reserve(request, size) as reply:
        logits = await task_scores(prepared, task)

        def content() -> object:
            data = [predictions(row, task.labels, probabilities(row)) for row in logits]
            return envelope("classify", model.name, prepared.timings) | {"data": data}

        return await reply.json(content, prepared.timings)
