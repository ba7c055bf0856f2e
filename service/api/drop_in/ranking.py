"""Scores of texts with a query, in every dialect: a cross-encoder's, or MaxSim's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from fastapi import Request

from model.artifact.task import TaskConfig, TaskKind
from service.api.drop_in.reserved import reserve
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
    """The scores of some texts, in the order of the request."""

    values: list[Floats]
    """`[1]` a text."""
    logits: bool
    """Whether they are logits, which a sigmoid makes scores of 0 … 1; MaxSim is none."""
    timings: Timings

    def scores(self, *, raw: bool = False) -> list[np.float32]:
        """One a text.

        Args:
            raw: whether logits stay as they are; sigmoid otherwise. MaxSim is given as it is.

        """
        if self.logits and not raw:
            return [probabilities(value)[0] for value in self.values]
        return [value[0] for value in self.values]

    def order(self) -> list[int]:
        """The texts' numbers, that of the largest score first; of equal ones the first text."""
        downwards = [-float(value[0]) for value in self.values]
        order: list[int] = np.argsort(downwards, kind="stable").tolist()
        return order


def ranker(inference: Inference) -> TaskConfig:
    """The task head that ranks: one label, or a vector a token.

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


async def ranked(
    request: Request,
    query: str,
    texts: Sequence[str],
    options: Options,
    cut: Sequence[bool] = (),
) -> Ranking:
    """The scores of texts with a query.

    Token vectors of a late-interaction model are in memory until all texts have theirs; their
    bytes count among those of the replies in flight.

    Args:
        request: which model answers, and who asks.
        query: what the texts are scored for.
        texts: at least one.
        options: how they are tokenised.
        cut: of each text, whether it is a part of what the caller sent; none is when empty.

    Raises:
        NoTaskHead: the model ranks nothing.
        Unprocessable: too many texts, or one that does not fit the model.
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
    with reserve(request, ranking.vector_bytes):
        return Ranking(await rank(ranking, timings), logits=False, timings=timings)
