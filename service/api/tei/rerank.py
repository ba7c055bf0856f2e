"""`POST /rerank`: texts by a cross-encoder's score of each with a query, in TEI's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from model.artifact.task import TaskConfig
from service.api.route import JsonRoute, caller_of, model_of
from service.api.tei.errors import ERRORS
from service.api.tei.texts import TeiRequest, respond
from service.engines.contract import Floats
from service.errors import EmptyInputs, NoTaskHead
from service.inference.core import Inference
from service.inference.task_heads import probabilities, required_task, task_scores

router = APIRouter(route_class=JsonRoute, tags=["tasks"])
RANK_BYTES = 56
"""Of a text's rank in JSON, without the text."""
TEXT_BYTES = 6
"""Most bytes of a character in JSON."""
_CROSS_ENCODER = "a cross-encoder (…ForSequenceClassification with one label)"


class RerankRequest(TeiRequest):
    """`POST /rerank`."""

    query: str
    texts: list[str] = Field(description="What is ranked.")
    raw_scores: bool = Field(False, description="Logits, without sigmoid.")
    return_text: bool = Field(False, description="Whether each rank has its text.")

    def check_model(self, inference: Inference) -> TaskConfig:
        """The task head, with one label.

        Raises:
            NoTaskHead: the model is no cross-encoder.

        """
        task = required_task(inference.manifest, "sequence_classification", _CROSS_ENCODER)
        if task.outputs != 1:
            raise NoTaskHead(
                f"{inference.manifest.model} has {task.outputs} labels and ranks nothing: "
                f"serve {_CROSS_ENCODER}, or ask /predict"
            )
        return task


class Rank(BaseModel):
    """A text's number in the request, and its score."""

    index: int
    score: float
    text: str | None = None


@router.post("/rerank", response_model=None, responses={200: {"model": list[Rank]}, **ERRORS})
async def rerank(body: RerankRequest, request: Request) -> Response:
    """The texts, the most relevant to the query first."""
    inference, caller = model_of(request).inference, caller_of(request)
    task = body.check_model(inference)
    if not body.texts:
        raise EmptyInputs("`texts` is empty")
    pairs = [(body.query, text) for text in body.texts]
    prepared = await inference.prepare(pairs, body.options(), caller, "encode")
    logits = await task_scores(prepared, task)
    size = RANK_BYTES * len(pairs)
    if body.return_text:
        size += TEXT_BYTES * sum(map(len, body.texts))
    texts = body.texts if body.return_text else None
    return await respond(
        request, size, lambda: ranks(logits, texts, raw=body.raw_scores), prepared.timings
    )


def ranks(
    logits: Sequence[Floats], texts: Sequence[str] | None, *, raw: bool
) -> list[dict[str, Any]]:
    """Each text's number and score, the largest first; of equal ones the first text.

    Args:
        logits: `[1]` a text.
        texts: that the reply repeats; none when None.
        raw: whether the scores are the logits.

    """
    order = np.argsort([-float(of_text[0]) for of_text in logits], kind="stable")
    return [
        {
            "index": index,
            "score": (logits[index] if raw else probabilities(logits[index]))[0],
            **({} if texts is None else {"text": texts[index]}),
        }
        for index in order.tolist()
    ]
