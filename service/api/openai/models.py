"""`GET /v1/models`: the models that a request can choose, in OpenAI's form."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from model.artifact.manifest import MANIFEST
from service.api.route import service_of
from service.models import ServedModel

OWNER = "headscope"

router = APIRouter(tags=["openai"])


class OpenAIModel(BaseModel):
    """A model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    """Seconds since 1970, when the artifact came to be in its folder."""
    owned_by: str = OWNER


class OpenAIModels(BaseModel):
    """All models, the default first."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]


@router.get("/v1/models")
async def models(request: Request) -> OpenAIModels:
    """The models that are served, the default first."""
    return OpenAIModels(data=[_described(model) for model in service_of(request).models])


def _described(model: ServedModel) -> OpenAIModel:
    written = model.artifact.path(MANIFEST).stat().st_mtime
    return OpenAIModel(id=model.name, created=int(written))
