"""`GET /models`: the models that a request can choose, in Infinity's form."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from model.artifact.manifest import MANIFEST
from model.artifact.task import TaskConfig
from service.api.wire.route import service_of
from service.serving.models import ServedModel

router = APIRouter(tags=["infinity"])


class InfinityModel(BaseModel):
    """A model, what waits for it, and which of Infinity's routes it answers."""

    id: str
    stats: dict[str, float]
    object: Literal["model"] = "model"
    owned_by: Literal["infinity"] = "infinity"
    """Infinity's clients know no other."""
    created: int
    """Seconds since 1970, when the artifact came to be in its folder."""
    backend: str
    capabilities: list[str]


class InfinityModels(BaseModel):
    """All models, the default first."""

    data: list[InfinityModel]
    object: str = "list"


@router.get("/models")
async def models(request: Request) -> InfinityModels:
    """The models that are served, the default first, and then their aliases."""
    state = service_of(request)
    limit, named = state.settings.max_queue_tokens, state.models.by_name
    return InfinityModels(data=[_described(name, one, limit) for name, one in named.items()])


def _described(name: str, model: ServedModel, max_queue_tokens: int) -> InfinityModel:
    written = model.artifact.path(MANIFEST).stat().st_mtime
    queued = sum(model.queued_tokens.values())
    stats: dict[str, Any] = {
        "queue_fraction": queued / max_queue_tokens,
        "queue_absolute": queued,
    }
    return InfinityModel(
        id=name,
        stats=stats,
        created=int(written),
        backend=model.inference.engines.default.engine.name,
        capabilities=capabilities(model.artifact.manifest.task),
    )


def capabilities(task: TaskConfig | None) -> list[str]:
    """Which of `embed`, `rerank` and `classify` a model with this task head does."""
    if task is None:
        return ["embed"]
    if task.kind == "late_interaction":
        return ["rerank"]
    if task.kind != "sequence_classification":
        return []
    return ["rerank", "classify"] if task.outputs == 1 else ["classify"]
