"""`POST /score` and `/v1/score`: scores of text pairs, in vLLM's format."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from model.numerics.task_head import TaskConfig
from service.api.vllm.errors import ERRORS
from service.api.vllm.fields import Usage, VllmRequest, envelope
from service.api.vllm.scoring import Pairs, scored, scorer
from service.api.wire.reserved import reserve
from service.api.wire.route import JsonRoute, model_of
from service.api.wire.text_warnings import WarnedReply
from service.inference.core import Inference

router = APIRouter(route_class=JsonRoute, tags=["vllm"])
SCORE_BYTES = 64
"""Predicted bytes of a pair's score in JSON."""
NAMES = (
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
    ("text_1", "text_2"),
)
"""Accepted names of the two sides; the first pair of names in the request counts."""
Side = str | list[str]


class ScoreRequest(VllmRequest):
    """Request body of `POST /score` and `/v1/score`."""

    text_1: Side | None = Field(None, description="A text, or as many texts as on the other side.")
    text_2: Side | None = Field(None, description="A text or a list of texts.")
    queries: Side | None = Field(None, description="As `text_1`.")
    documents: Side | None = Field(None, description="As `text_2`.")
    items: Side | None = Field(None, description="As `text_2`.")
    data_1: Side | None = Field(None, description="As `text_1`.")
    data_2: Side | None = Field(None, description="As `text_2`.")

    @model_validator(mode="after")
    def _sides(self) -> ScoreRequest:
        pairs = self.pairs
        if len(pairs.first) not in (1, len(pairs.second)) or not pairs.second:
            raise PydanticCustomError(
                "sides",
                "{first} texts and {second}: one with many, or as many with as many are scored",
                {"first": len(pairs.first), "second": len(pairs.second)},
            )
        return self

    @property
    def pairs(self) -> Pairs:
        """Texts of both sides."""
        for names in NAMES:
            first, second = (getattr(self, name) for name in names)
            if first is not None and second is not None:
                return Pairs(_listed(first), _listed(second), names)
        raise PydanticCustomError("sides", "text_1 and text_2 are needed")

    def check_model(self, inference: Inference) -> TaskConfig | None:
        """Return the model's task head for scoring pairs, or None if it embeds texts."""
        return scorer(inference)


def _listed(side: Side) -> list[str]:
    return [side] if isinstance(side, str) else side


class Score(BaseModel):
    """Index of a pair in the request, and its score."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreReply(WarnedReply):
    """Scores in the order of the request."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: Usage


@router.post("/v1/score", response_model=None, responses={200: {"model": ScoreReply}, **ERRORS})
@router.post("/score", response_model=None, responses={200: {"model": ScoreReply}, **ERRORS})
async def score(body: ScoreRequest, request: Request) -> Response:
    """Score each pair by a cross-encoder, MaxSim, or the cosine of its vectors."""
    model, pairs = model_of(request), body.pairs
    body.check_model(model.inference)
    size = SCORE_BYTES * len(pairs.second)
    with reserve(request, size) as reply:
        ranking = await scored(request, pairs, body)
        scores = ranking.scores(raw=body.use_activation is False)

        def content() -> object:
            data = [
                {"index": index, "object": "score", "score": score}
                for index, score in enumerate(scores)
            ]
            return envelope(request, "score", model.name, ranking.timings) | {"data": data}

        return await reply.json(content, ranking.timings)
