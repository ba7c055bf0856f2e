"""Relevance scores of texts to a query, in every dialect, by a cross-encoder or MaxSim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from fastapi import Request

from model.numerics.task_head import TaskConfig, TaskKind
from service.api.wire.reserved import hold
from service.api.wire.route import caller_of, model_of
from service.engines.contract import Floats
from service.errors import NoTaskHead
from service.inference.core import Inference
from service.inference.tasks.late_interaction import prepare_ranking, rank
from service.inference.tasks.task_heads import probabilities, required_task, task_scores
from service.inference.timings import Timings
from service.inference.tokenization.tokenizer import Options

_KINDS: tuple[TaskKind, ...] = ("sequence_classification", "late_interaction")
_RANKER = "a cross-encoder (…ForSequenceClassification with one label) or a late-interaction model"


@dataclass(frozen=True)
class Ranking:
    """Scores of texts, in the order of the request."""

    values: list[Floats]
    """Score of each text, `[1]`."""
    logits: bool
    """Whether the values are logits, which a sigmoid maps to 0 … 1; MaxSim values are not."""
    timings: Timings

    def scores(self, *, raw: bool = False) -> list[np.float32]:
        """Return the score of each text.

        Args:
            raw: whether to return logits without a sigmoid. MaxSim values never get one.

        """
        if self.logits and not raw:
            return [probabilities(value)[0] for value in self.values]
        return [value[0] for value in self.values]

    def order(self) -> list[int]:
        """Return the texts' indices by descending score; ties keep the order of the request."""
        downwards = [-float(value[0]) for value in self.values]
        order: list[int] = np.argsort(downwards, kind="stable").tolist()
        return order


def ranker(inference: Inference) -> TaskConfig:
    """Return the task head of a reranker: one label, or a vector for each token.

    Raises:
        NoTaskHead: the model is not a reranker.

    """
    task = required_task(inference.manifest, _KINDS, _RANKER)
    if task.kind == "sequence_classification" and task.outputs != 1:
        raise NoTaskHead(
            f"{inference.manifest.model} has {task.outputs} labels and is not a reranker: "
            f"serve {_RANKER}, or ask /predict"
        )
    return task


async def ranked(
    request: Request,
    query: str,
    texts: Sequence[str],
    options: Options,
    cut: Sequence[bool] = (),
) -> Ranking:
    """Score texts by their relevance to a query.

    A late-interaction model keeps token vectors in memory until all texts are encoded; their bytes
    are charged to the budget of replies in flight.

    Args:
        request: HTTP request, which names the model and the client.
        query: query that the texts are scored against.
        texts: documents, at least one.
        options: tokenisation options.
        cut: whether each text was already truncated; empty if none was.

    Raises:
        NoTaskHead: the model is not a reranker.
        Unprocessable: there are too many texts, or a text does not fit the model.
        ReplyTooLarge: the token vectors would exceed the limit of a reply.
        Overloaded: the queue has no room, or the deadline cannot be met.
        ServiceError: the engine failed.

    """
    inference, caller = model_of(request).inference, caller_of(request)
    task = ranker(inference)
    if task.late is None:
        pairs = [(query, text) for text in texts]
        prepared = await inference.prepare(pairs, options, caller, "encode")
        if any(cut):
            prepared.mark_truncated(cut)
        return Ranking(await task_scores(prepared, task), logits=True, timings=prepared.timings)
    ranking = await prepare_ranking(inference, task.late, query, texts, options, caller)
    if any(cut):
        ranking.documents.mark_truncated(cut)
    timings = ranking.timings
    with hold(request, ranking.vector_bytes):
        return Ranking(await rank(ranking, timings), logits=False, timings=timings)
