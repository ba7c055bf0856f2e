"""Relevance scores of texts to a query, in every dialect: cross-encoders, MaxSim, hybrid scores."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from model.numerics.task_head import TaskConfig, TaskKind
from service.api.wire.route import ApiExchange, caller_of, hold
from service.engines.contract import Floats
from service.errors import NoTaskHead, Unprocessable
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.tasks.hybrid import HybridWeights, hybrid_scores, vector_bytes
from service.inference.tasks.late_interaction import prepare_ranking, rank
from service.inference.tasks.task_heads import probabilities, required_task, task_scores
from service.inference.timings import Timings
from service.inference.tokenization.text import Text
from service.inference.tokenization.tokenizer import Options
from service.scheduler.call import Call

NAMING = "documents[{}]"
CHARACTER_TOKENS = 4
"""Maximum tokens of a character: its bytes in UTF-8."""
_ALONE = Options(truncate=True, naming=NAMING)


def _documents(value: object) -> list[str]:
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("documents", "a list with at least one document is needed")
    texts = []
    for index, document in enumerate(value):
        match document:
            case str(text) | {"text": str(text)}:
                texts.append(text)
            case _:
                raise PydanticCustomError(
                    "documents",
                    "documents[{index}] is neither a text nor an object with a text",
                    {"index": index},
                )
    return texts


_TEXT = {"type": "string"}
_OBJECT = {"type": "object", "properties": {"text": _TEXT}, "required": ["text"]}
Documents = Annotated[
    list[str],
    PlainValidator(_documents),
    WithJsonSchema(
        {"type": "array", "items": {"anyOf": [_TEXT, _OBJECT]}, "minItems": 1, "title": "Documents"}
    ),
    Field(description="Documents to rank: texts, or objects with a `text`."),
]


async def shortened(
    inference: Inference, documents: Sequence[str], max_tokens: int, caller: Call
) -> Sequence[str]:
    """Return each document cut after its first `max_tokens` tokens.

    Args:
        inference: inference of the model.
        documents: texts, at least one.
        max_tokens: maximum number of tokens of a document, without special tokens. Documents stay
            uncut if this is not below the model's own limit.
        caller: client and deadline of the request.

    Raises:
        Unprocessable: there are too many documents, or a document has too many characters.
        Overloaded: the queue has no room, or the deadline cannot be met.

    """
    most = CHARACTER_TOKENS * max(map(len, documents))
    if max_tokens >= min(most, inference.limits.max_tokens):
        return documents
    prepared = await inference.prepare(documents, _ALONE, caller, "encode")

    def cut() -> list[str]:
        pairs = zip(documents, prepared.texts, strict=True)
        return [first_tokens(document, text, max_tokens) for document, text in pairs]

    return await asyncio.to_thread(cut)


def first_tokens(document: str, tokenized: Text, count: int) -> str:
    """Return a document up to the end of its first `count` tokens, special tokens not counted."""
    pairs = zip(tokenized.offsets, tokenized.special_tokens_mask, strict=True)
    ends = [end for (_, end), special in pairs if not special]
    return document[: ends[count - 1]] if len(ends) > count else document


MAX_WEIGHT = 1e6
"""Maximum weight of a score."""
_KINDS: tuple[TaskKind, ...] = ("sequence_classification", "late_interaction", "hybrid")
_RANKER = "a cross-encoder (…ForSequenceClassification with one label) or a late-interaction model"


class ScoreWeights(BaseModel):
    """Weights of the scores of bge-m3's three vectors; a missing weight is 0."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    dense: float = Field(0.0, ge=0, le=MAX_WEIGHT)
    sparse: float = Field(0.0, ge=0, le=MAX_WEIGHT)
    multivector: float = Field(0.0, ge=0, le=MAX_WEIGHT)

    @model_validator(mode="after")
    def _not_all_zero(self) -> ScoreWeights:
        if not (self.dense or self.sparse or self.multivector):
            raise PydanticCustomError("weights", "one of the weights has to be above 0")
        return self

    @property
    def hybrid(self) -> HybridWeights:
        """Weights of the scores."""
        return HybridWeights(self.dense, self.sparse, self.multivector)


def weighted_task(inference: Inference) -> TaskConfig:
    """Return the task head whose scores a request weighs."""
    task = inference.manifest.task
    if task is None or task.kind != "hybrid":
        raise Unprocessable(
            f"weights: {inference.manifest.model} has no dense, sparse and multi-vector scores, as "
            "bge-m3 has: leave it out"
        )
    return task


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
    """Return the task head of a reranker: one label, or a vector for each token."""
    task = required_task(inference.manifest, _KINDS, _RANKER)
    if task.kind == "sequence_classification" and task.outputs != 1:
        raise NoTaskHead(
            f"{inference.manifest.model} has {task.outputs} labels and is not a reranker: "
            f"serve {_RANKER}, or ask /predict"
        )
    return task


async def ranked(
    exchange: ApiExchange,
    query: str,
    texts: Sequence[str],
    options: Options,
    cut: Sequence[bool] = (),
    weights: ScoreWeights | None = None,
) -> Ranking:
    """Score texts by their relevance to a query.

    A late-interaction model keeps token vectors in memory until all texts are encoded; their bytes
    are charged to the budget of replies in flight.

    Args:
        exchange: exchange of the request.
        query: query that the texts are scored against.
        texts: documents, at least one.
        options: tokenisation options.
        cut: whether each text was already truncated; empty if none was.
        weights: weights of the scores of bge-m3's three vectors; all 1 when None.

    Raises:
        NoTaskHead: the model is not a reranker.
        Unprocessable: there are too many texts, a text does not fit the model, or the model has no
            scores to weigh.
        ReplyTooLarge: the token vectors would exceed the limit of a reply.
        Overloaded: the queue has no room, or the deadline cannot be met.
        ServiceError: the engine failed.

    """
    inference, caller = exchange.model.inference, caller_of(exchange)
    task = ranker(inference) if weights is None else weighted_task(inference)
    if task.kind == "hybrid":
        prepared = await _query_and_texts(exchange, query, texts, options, cut)
        hold(exchange, vector_bytes(inference, prepared, task))
        chosen = weights.hybrid if weights else HybridWeights()
        scores = await hybrid_scores(inference, prepared, task, chosen)
        return Ranking(scores, logits=False, timings=prepared.timings)
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
    hold(exchange, ranking.vector_bytes)
    return Ranking(await rank(ranking, timings), logits=False, timings=timings)


async def _query_and_texts(
    exchange: ApiExchange, query: str, texts: Sequence[str], options: Options, cut: Sequence[bool]
) -> PreparedTexts:
    """Tokenise a query and texts, which are encoded together."""
    inference, caller = exchange.model.inference, caller_of(exchange)
    of_query, of_texts = (replace(options, naming=naming) for naming in ("the query", "texts[{}]"))
    first = await inference.prepare([query], of_query, caller, "encode")
    others = await inference.prepare(texts, of_texts, caller, "encode")
    if any(cut):
        others.mark_truncated(cut)
    timings = first.timings + others.timings
    return replace(others, texts=[*first.texts, *others.texts], timings=timings)
