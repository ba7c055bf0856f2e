"""`POST /rerank`: texts by their scores with a query, in TEI's form.

They are those of a cross-encoder, or the MaxSim of a late-interaction model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from model.artifact.late_interaction import LateInteraction
from model.artifact.task import TaskConfig, TaskKind
from service.api.route import JsonRoute, caller_of, model_of
from service.api.tei.errors import ERRORS
from service.api.tei.texts import CHARACTER_BYTES, TeiRequest, reserve, respond
from service.engines.contract import Floats
from service.errors import EmptyInputs, NoTaskHead
from service.inference.core import Inference
from service.inference.late_interaction import prepare_ranking, rank
from service.inference.task_heads import probabilities, required_task, task_scores

router = APIRouter(route_class=JsonRoute, tags=["tasks"])
RANK_BYTES = 56
"""Of a text's rank in JSON, without the text."""
_KINDS: tuple[TaskKind, ...] = ("sequence_classification", "late_interaction")
_RANKER = "a cross-encoder (…ForSequenceClassification with one label) or a late-interaction model"


class RerankRequest(TeiRequest):
    """`POST /rerank`."""

    query: str
    texts: list[str] = Field(description="What is ranked.")
    raw_scores: bool = Field(
        False, description="Logits, without sigmoid; MaxSim is given as it is in any case."
    )
    return_text: bool = Field(False, description="Whether each rank has its text.")

    @property
    def returned(self) -> list[str] | None:
        """The texts that the reply repeats; none when None."""
        return self.texts if self.return_text else None

    def check_model(self, inference: Inference) -> TaskConfig:
        """The task head: one label, or a vector a token.

        Raises:
            NoTaskHead: the model ranks nothing.

        """
        task = required_task(inference.manifest, _KINDS, _RANKER)
        if task.kind == "sequence_classification" and task.outputs != 1:
            raise NoTaskHead(
                f"{inference.manifest.model} has {task.outputs} labels and ranks nothing: "
                f"serve {_RANKER}, or ask /predict"
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
    inference = model_of(request).inference
    task = body.check_model(inference)
    if not body.texts:
        raise EmptyInputs("`texts` is empty")
    if task.late is not None:
        return await _by_max_sim(body, request, inference, task.late)
    return await _by_logits(body, request, inference, task)


async def _by_logits(
    body: RerankRequest, request: Request, inference: Inference, task: TaskConfig
) -> Response:
    pairs = [(body.query, text) for text in body.texts]
    prepared = await inference.prepare(pairs, body.options(), caller_of(request), "encode")
    with reserve(request, size := _reply_bytes(body)) as held:
        logits = await task_scores(prepared, task)
        return await respond(
            held,
            size,
            lambda: ranks(logits, body.returned, raw=body.raw_scores),
            prepared.timings,
        )


async def _by_max_sim(
    body: RerankRequest, request: Request, inference: Inference, late: LateInteraction
) -> Response:
    """Token vectors are in memory until all texts of a request have theirs."""
    ranking = await prepare_ranking(
        inference, late, body.query, body.texts, body.options(), caller_of(request)
    )
    timings = ranking.timings
    with reserve(request, size := _reply_bytes(body)) as held:
        with reserve(request, ranking.vector_bytes):
            scores = await rank(ranking, timings)
        return await respond(held, size, lambda: ranks(scores, body.returned, raw=True), timings)


def _reply_bytes(body: RerankRequest) -> int:
    return RANK_BYTES * len(body.texts) + CHARACTER_BYTES * sum(map(len, body.returned or ()))


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
