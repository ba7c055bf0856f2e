"""`GET /models`: the models that a request can choose, in Infinity's format."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from model.artifact.manifest import MANIFEST
from model.numerics.task_head import TaskConfig
from service.api.wire.route import ApiExchange
from service.models.served import ServedModel
from service.settings.served import of_model

NOT_LOADED = "not loaded"
"""Backend of a model that is loaded on demand."""

router = APIRouter(tags=["infinity"])


class InfinityModel(BaseModel):
    """Model, its queue, and its capabilities."""

    id: str
    stats: dict[str, float]
    object: Literal["model"] = "model"
    owned_by: Literal["infinity"] = "infinity"
    """Owner, the only value that Infinity's clients accept."""
    created: int
    """Unix time in seconds at which the artifact's manifest, or the config of a checkpoint that is
    not loaded, was written."""
    backend: str
    capabilities: list[str]
    """Capabilities of a loaded model; empty until it is loaded."""


class InfinityModels(BaseModel):
    """All models, the default first."""

    data: list[InfinityModel]
    object: str = "list"


@router.get("/models")
async def models(exchange: ApiExchange) -> InfinityModels:
    """List the loaded models, the default first, their aliases, and models loaded on demand."""
    state = exchange.service
    unloaded = await state.control.on_demand()
    listed = [_described(name, model) for name, model in state.models.by_name.items()]
    listed += [
        InfinityModel(
            id=name,
            stats=_stats(0, of_model(state.settings, name).max_queue_tokens),
            created=created,
            backend=NOT_LOADED,
            capabilities=[],
        )
        for name, created in unloaded.items()
    ]
    return InfinityModels(data=listed)


def _stats(queued_tokens: int, limit: int) -> dict[str, float]:
    return {"queue_fraction": queued_tokens / limit, "queue_absolute": queued_tokens}


def _described(name: str, model: ServedModel) -> InfinityModel:
    written = model.artifact.path(MANIFEST).stat().st_mtime
    queued = sum(model.queued_tokens.values())
    return InfinityModel(
        id=name,
        stats=_stats(queued, model.settings.max_queue_tokens),
        created=int(written),
        backend=model.inference.engines.default.engine.name,
        capabilities=capabilities(model.artifact.manifest.task),
    )


def capabilities(task: TaskConfig | None) -> list[str]:
    """Return the capabilities of a model with this task head: `embed`, `rerank`, `classify`."""
    if task is None:
        return ["embed"]
    if task.kind == "hybrid":
        return ["embed", "rerank"]
    if task.kind == "late_interaction":
        return ["rerank"]
    if task.kind != "sequence_classification":
        return []
    return ["rerank", "classify"] if task.outputs == 1 else ["classify"]
