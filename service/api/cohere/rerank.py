"""`POST /v2/rerank`: rank documents by their relevance to a query, in Cohere's format."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from model.numerics.task_head import TaskConfig
from service.api.cohere.replies import ERRORS, Meta, new_id, searched
from service.api.drop_in.ranking import NAMING, Documents, Ranking, ranked, ranker, shortened
from service.api.native.texts import LenientRequest
from service.api.vllm import score as vllm
from service.api.vllm.fields import with_vllm_errors
from service.api.wire.route import (
    CHARACTER_BYTES,
    ApiExchange,
    JsonRoute,
    caller_of,
    json_reply,
    reserve,
)
from service.inference.core import Inference
from service.inference.tokenization.tokenizer import Options

router = APIRouter(route_class=JsonRoute, tags=["cohere"])
RANK_BYTES = 88
"""Predicted bytes of a document's rank in JSON, without the document."""
MAX_TOKENS_PER_DOC = 4096
"""Default number of tokens of a document that are ranked."""
_CUT = Options(truncate=True, naming=NAMING)


class RankRequest(LenientRequest):
    """Request of `POST /v2/rerank`, and base of the `POST /v1/rerank` request."""

    query: str
    documents: Documents
    top_n: int | None = Field(None, ge=1, description="Maximum number of results; all when null.")
    max_tokens_per_doc: int = Field(
        MAX_TOKENS_PER_DOC,
        ge=1,
        description="Tokens after which a document is cut, if the model takes as many.",
    )
    raw_scores: bool = Field(
        False, description="Own field: logits without a sigmoid, which do not saturate at 1.0."
    )

    def check_model(self, inference: Inference) -> TaskConfig:
        """Return the model's task head: one label, or a vector for each token."""
        return ranker(inference)

    async def ranking(self, exchange: ApiExchange) -> Ranking:
        """Score the documents, each cut to `max_tokens_per_doc`."""
        inference, caller = exchange.model.inference, caller_of(exchange)
        texts = await shortened(inference, self.documents, self.max_tokens_per_doc, caller)
        cut = [len(text) < len(given) for text, given in zip(texts, self.documents, strict=True)]
        return await ranked(exchange, self.query, texts, _CUT, cut)

    def ranks(self, ranking: Ranking, *, documents: bool) -> list[dict[str, object]]:
        """Return the first `top_n` results, the largest score first."""
        scores = ranking.scores(raw=self.raw_scores)
        ranks = []
        for index in ranking.order()[: self.top_n]:
            rank: dict[str, object] = {"index": index, "relevance_score": scores[index]}
            if documents:
                rank["document"] = {"text": self.documents[index]}
            ranks.append(rank)
        return ranks

    def reply_bytes(self, *, documents: bool) -> int:
        """Predict the bytes of the results of all documents."""
        text = CHARACTER_BYTES * sum(map(len, self.documents)) if documents else 0
        return RANK_BYTES * len(self.documents) + text


class Rank(BaseModel):
    """Index of a document in the request, and its score."""

    index: int
    relevance_score: float


class RerankReply(BaseModel):
    """Results, the most relevant document first."""

    id: str
    results: list[Rank]
    meta: Meta


@router.post(
    "/v2/rerank",
    response_model=None,
    responses={200: {"model": RerankReply | vllm.VllmRerankReply}, **with_vllm_errors(ERRORS)},
)
async def rerank(body: RankRequest | vllm.VllmRerankRequest, exchange: ApiExchange) -> Response:
    """Rank the documents, the most relevant to the query first; long documents are cut.

    A body with a field that only vLLM has is answered in vLLM's format.
    """
    if isinstance(body, vllm.VllmRerankRequest):
        return await vllm.rerank(body, exchange)
    body.check_model(exchange.model.inference)
    size = body.reply_bytes(documents=False)
    reserve(exchange, size)
    ranking = await body.ranking(exchange)

    def content() -> object:
        results = body.ranks(ranking, documents=False)
        meta = searched("2", len(body.documents), ranking.timings)
        return {"id": new_id(), "results": results, "meta": meta}

    return await json_reply(exchange, content, ranking.timings)
