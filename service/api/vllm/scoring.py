"""Scores of text pairs, as vLLM computes them.

The score is a cross-encoder's probability, the MaxSim of a late-interaction model, or the cosine of
the vectors of a model without a task head.

Notation: P pairs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from fastapi import Request

from model.numerics.late_interaction import LateInteraction
from model.numerics.task_head import TaskConfig
from service.api.drop_in.prompts import without_prompt
from service.api.drop_in.ranking import Ranking, ranker
from service.api.vllm.fields import VllmRequest
from service.api.wire.reserved import hold
from service.api.wire.route import caller_of, model_of
from service.engines.contract import Floats
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions
from service.inference.tasks.late_interaction import prepare_ranking, rank
from service.inference.tasks.task_heads import task_scores
from service.inference.timings import Timings


@dataclass(frozen=True)
class Pairs:
    """Texts to score: one text with each text of the other side, or pairs by position."""

    first: Sequence[str]
    """First text of each pair, or one text for all pairs."""
    second: Sequence[str]
    names: tuple[str, str] = ("text_1", "text_2")
    """Names of the request's fields with the two sides."""

    def both(self) -> list[tuple[str, str]]:
        """Return the P pairs."""
        if len(self.first) == 1:
            return [(self.first[0], text) for text in self.second]
        return list(zip(self.first, self.second, strict=True))


def scorer(inference: Inference) -> TaskConfig | None:
    """Return the model's task head for scoring pairs, or None if it embeds texts.

    Raises:
        NoTaskHead: the model has another task head.

    """
    task = inference.manifest.task
    return None if task is None or task.kind == "hybrid" else ranker(inference)


async def scored(request: Request, pairs: Pairs, body: VllmRequest) -> Ranking:
    """Score each pair, in the order of the request.

    Args:
        request: HTTP request, which names the model and the client.
        pairs: texts to score, at least one pair.
        body: request body, with the options of truncation.

    Raises:
        NoTaskHead: the model does not score pairs.
        Unprocessable: there are too many texts, or a text does not fit the model.
        ReplyTooLarge: the vectors would exceed the limit of a reply.
        Overloaded: the queue has no room, or the deadline cannot be met.
        ServiceError: the engine failed.

    """
    inference = model_of(request).inference
    body.check_length(inference.limits.max_tokens)
    task = scorer(inference)
    if task is None:
        return await _cosines(request, pairs, body)
    if task.late is None:
        return await _cross_encoded(request, pairs, body, task)
    return await _max_sims(request, pairs, body, task.late)


async def _cosines(request: Request, pairs: Pairs, body: VllmRequest) -> Ranking:
    inference, caller = model_of(request).inference, caller_of(request)
    sides = []
    for name, texts in zip(pairs.names, (pairs.first, pairs.second), strict=True):
        options = body.options(f"{name}[{{}}]", without_prompt(inference))
        sides.append(await inference.prepare(texts, options, caller, "encode"))
        await body.cut(sides[-1])
    first, second = sides
    prepared = replace(
        first, texts=[*first.texts, *second.texts], timings=first.timings + second.timings
    )
    last = inference.config.num_hidden_layers
    with hold(request, 4 * inference.vectors.kept() * len(prepared.texts)):
        wanted = EncodeOptions(last, tokens=False, pooled=True, normalize=True)
        encodings = await inference.encode(prepared, wanted)
        vectors = [encoding.pooled for encoding in encodings if encoding.pooled is not None]
        values = await asyncio.to_thread(_products, vectors, len(pairs.first))
    return Ranking(values, logits=False, timings=prepared.timings)


def _products(vectors: Sequence[Floats], queries: int) -> list[Floats]:
    """Return the dot product of each pair's unit vectors, `[1]`."""
    first, second = np.stack(vectors[:queries]), np.stack(vectors[queries:])
    return list(np.sum(first * second, axis=1, keepdims=True))


async def _cross_encoded(
    request: Request, pairs: Pairs, body: VllmRequest, task: TaskConfig
) -> Ranking:
    inference = model_of(request).inference
    options = body.options(f"the pair of {pairs.names[1]}[{{}}]")
    prepared = await inference.prepare(pairs.both(), options, caller_of(request), "encode")
    await body.cut(prepared)
    values = await task_scores(prepared, task)
    return Ranking(values, logits=True, timings=prepared.timings)


async def _max_sims(
    request: Request, pairs: Pairs, body: VllmRequest, late: LateInteraction
) -> Ranking:
    """Score one query after the other, each with all its documents."""
    inference, caller = model_of(request).inference, caller_of(request)
    asked: dict[str, list[int]] = {}
    for number, (query, _) in enumerate(both := pairs.both()):
        asked.setdefault(query, []).append(number)
    values: list[Floats] = [np.empty(0, np.float32)] * len(both)
    total: Timings | None = None
    for query, numbers in asked.items():
        documents = [both[number][1] for number in numbers]
        options = body.options("{}")
        ranking = await prepare_ranking(inference, late, query, documents, options, caller)
        await body.cut(ranking.query)
        await body.cut(ranking.documents)
        timings = ranking.timings
        with hold(request, ranking.vector_bytes):
            scores = await rank(ranking, timings)
        for number, value in zip(numbers, scores, strict=True):
            values[number] = value
        total = timings if total is None else total + timings
    assert total is not None  # noqa: S101 - there is at least one pair
    return Ranking(values, logits=False, timings=total)
