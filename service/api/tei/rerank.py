"""`POST /rerank`: texts by their scores with a query, in TEI's form.

They are those of a cross-encoder, or the MaxSim of a late-interaction model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from model.artifact.late_interaction import LateInteraction
from service.api.native.texts import check_size
from service.api.route import JsonRoute, caller_of, service_of
from service.api.tei.errors import ERRORS
from service.api.tei.texts import TeiRequest, respond
from service.engines.contract import Floats
from service.errors import EmptyInputs, NoTaskHead
from service.inference.late_interaction import late_interaction_of, prepare_ranking, rank
from service.inference.task_heads import probabilities, required_task, task_scores
from service.inference.timings import Timings

router = APIRouter(route_class=JsonRoute, tags=["tasks"])
RANK_BYTES = 56
"""Of a text's rank in JSON, without the text."""
TEXT_BYTES = 6
"""Most bytes of a character in JSON."""
_CROSS_ENCODER = (
    "a cross-encoder (…ForSequenceClassification with one label) or a late-interaction model"
)


class RerankRequest(TeiRequest):
    """`POST /rerank`."""

    query: str
    texts: list[str] = Field(description="What is ranked.")
    raw_scores: bool = Field(
        False, description="Logits, without sigmoid; MaxSim is given as it is in any case."
    )
    return_text: bool = Field(False, description="Whether each rank has its text.")


class Scored(NamedTuple):
    """The logit, or the MaxSim, `[1]` of each text."""

    scores: list[Floats]
    timings: Timings


class Rank(BaseModel):
    """A text's number in the request, and its score."""

    index: int
    score: float
    text: str | None = None


@router.post("/rerank", response_model=None, responses={200: {"model": list[Rank]}, **ERRORS})
async def rerank(body: RerankRequest, request: Request) -> Response:
    """The texts, the most relevant to the query first."""
    late = late_interaction_of(service_of(request).inference.manifest)
    scored = await (_logits(body, request) if late is None else _max_sim(body, request, late))
    size = RANK_BYTES * len(body.texts)
    if body.return_text:
        size += TEXT_BYTES * sum(map(len, body.texts))
    texts = body.texts if body.return_text else None
    raw = body.raw_scores or late is not None
    return await respond(
        request, size, lambda: ranks(scored.scores, texts, raw=raw), scored.timings
    )


async def _max_sim(body: RerankRequest, request: Request, late: LateInteraction) -> Scored:
    """Token vectors are in memory until all texts of a request have theirs."""
    if not body.texts:
        raise EmptyInputs("`texts` is empty")
    state, caller = service_of(request), caller_of(request)
    ranking = await prepare_ranking(
        state.inference, late, body.query, body.texts, body.options(), caller
    )
    size, timings = ranking.vector_bytes, ranking.timings
    check_size(size, state.settings.max_response_bytes, "send fewer texts", binary=True)
    with state.replies.hold(size):
        return Scored(await rank(ranking, timings), timings)


async def _logits(body: RerankRequest, request: Request) -> Scored:
    inference, caller = service_of(request).inference, caller_of(request)
    task = required_task(inference.manifest, "sequence_classification", _CROSS_ENCODER)
    if task.outputs != 1:
        raise NoTaskHead(
            f"{inference.manifest.model} has {task.outputs} labels and ranks nothing: "
            f"serve {_CROSS_ENCODER}, or ask /predict"
        )
    if not body.texts:
        raise EmptyInputs("`texts` is empty")
    pairs = [(body.query, text) for text in body.texts]
    prepared = await inference.prepare(pairs, body.options(), caller, "encode")
    return Scored(await task_scores(prepared, task), prepared.timings)


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
