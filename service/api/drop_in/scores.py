"""Scores of texts in every dialect: relevance to a query, and labels."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from service.api.requests import LenientRequest, list_of
from service.api.wire.pictures import wrong
from service.api.wire.route import CHARACTER_BYTES, FEWER_TEXTS, ApiExchange
from service.api.wire.schemas import any_of, named, schema
from service.engines.contract import Floats
from service.inference.core import Inference
from service.inference.ranking.choice import RankTexts, check_reranker, scorer_of
from service.inference.ranking.ranker import Ranker, order_of
from service.inference.tasks.task_heads import sigmoid
from service.inference.timings import Timings
from service.inference.tokenization.tokenizer import Options
from service.scheduler.call import Call

CHARACTER_TOKENS = 4
"""Maximum tokens of a character: its bytes in UTF-8."""
RANK_BYTES = 88
"""Predicted bytes of a document's rank in JSON, without the document."""
PREDICTION_BYTES = 40
"""Predicted bytes of a label's score in JSON, without the label."""
_ALONE = Options(truncate=True, naming="documents[{}]")


def _document(value: object, index: int) -> str:
    match value:
        case str(text) | {"text": str(text)}:
            return text
    raise wrong(f"documents[{index}] is neither a text nor an object with a text")


Documents = Annotated[
    list[str],
    list_of(_document, "a list with at least one document is needed"),
    WithJsonSchema(schema([any_of(str, {"text": str}), ...])),
    Field(description="Documents to rank: texts, or objects with a `text`."),
]


async def shortened(
    inference: Inference, documents: Sequence[str], max_tokens: int, caller: Call
) -> Sequence[str]:
    """Return each document cut after its first `max_tokens` tokens, special tokens not counted.

    Documents stay uncut if this is not below the model's own limit.
    """
    most = CHARACTER_TOKENS * max(map(len, documents))
    if max_tokens >= min(most, inference.limits.max_tokens):
        return documents
    prepared = await inference.prepare(documents, _ALONE, caller, "encode")

    def cut() -> list[str]:
        texts = []
        for document, text in zip(documents, prepared.texts, strict=True):
            tokens = zip(text.offsets, text.special_tokens_mask, strict=True)
            ends = [end for (_, end), special in tokens if not special]
            texts.append(document[: ends[max_tokens - 1]] if len(ends) > max_tokens else document)
        return texts

    return await asyncio.to_thread(cut)


MAX_WEIGHT = 1e6
"""Maximum weight of a score."""


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


@dataclass(frozen=True)
class Ranking:
    """Scores of texts, in the order of the request."""

    values: Sequence[float]
    logits: bool
    """Whether the values are logits, which a sigmoid maps to 0 … 1; MaxSim values are not."""
    timings: Timings

    def scores(self, *, raw: bool = False) -> list[np.float32]:
        """Return the score of each text: logits with a sigmoid, unless they are requested `raw`."""
        values = np.array(self.values, np.float32)
        return list(sigmoid(values) if self.logits and not raw else values)

    def best(self, count: int | None = None, *, raw: bool) -> list[tuple[int, np.float32]]:
        """Return index and score of the best `count`, or all, texts; ties keep their order."""
        scores = self.scores(raw=raw)
        return [(index, scores[index]) for index in order_of(self.values)[:count]]


async def ranked(
    exchange: ApiExchange,
    texts: RankTexts,
    item_bytes: int = RANK_BYTES,
    *,
    returned: bool = False,
    max_tokens: int | None = None,
) -> Ranking:
    """Reserve a reply, and score documents, each cut to `max_tokens`, by their relevance.

    `item_bytes` are the predicted bytes of a score in the reply, without its document, which is
    also `returned` or not.
    """
    inference, caller, given = exchange.model.inference, exchange.call(), texts.documents
    reply_bytes = item_bytes * len(given)
    if returned:
        reply_bytes += CHARACTER_BYTES * sum(map(len, given))
    exchange.reserve(reply_bytes)
    if max_tokens is not None:
        documents = await shortened(inference, given, max_tokens, caller)
        texts = replace(texts, documents=documents)
    scorer = await scorer_of(inference, texts, caller)
    cut = [len(text) < len(whole) for text, whole in zip(texts.documents, given, strict=True)]
    if any(cut):
        scorer.documents.mark_truncated(cut)
    if scorer.queries:
        exchange.check_size(scorer.query_bytes, FEWER_TEXTS)
        exchange.reservation.grow(scorer.query_bytes, bounded=True)
    ranker = Ranker(scorer, texts.documents)
    await ranker.rank(reply_bytes)
    return Ranking(ranker.scores, scorer.scoring == "logit", scorer.timings)


class ScoresRequest(LenientRequest):
    """Request for scores of texts; a dialect adds its fields and the form of its reply."""

    needs: ClassVar[Callable[[Inference], object]] = check_reranker

    @abstractmethod
    async def ranking(self, exchange: ApiExchange) -> Ranking:
        """Reserve the reply, and score the texts."""

    @abstractmethod
    def content(self, exchange: ApiExchange, ranking: Ranking) -> object:
        """Return the JSON reply."""

    async def answer(self, exchange: ApiExchange) -> Response:
        """Reply with the scores."""
        self.check_model(exchange.model.inference)
        ranking = await self.ranking(exchange)
        return await exchange.json_reply(lambda: self.content(exchange, ranking), ranking.timings)


PREDICTION = named("Prediction", {"score": float, "label": str})


def predictions(logits: Floats, labels: Sequence[str], scores: Floats) -> list[dict[str, object]]:
    """Return each label with its score, the largest first; ties keep the order of the labels."""
    order = np.argsort(-logits, kind="stable")
    return [{"score": scores[label], "label": labels[label]} for label in order]


def label_bytes(texts: int, labels: Sequence[str]) -> int:
    """Return the predicted bytes of the scores of all labels for some texts."""
    return texts * sum(PREDICTION_BYTES + 2 * len(label) for label in labels)
