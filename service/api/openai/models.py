"""`GET /v1/models`: the models that a request can choose, in OpenAI's format."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from model.artifact.manifest import MANIFEST
from service.api.openai.errors import ERRORS
from service.api.wire.model_path import MODEL_PARAMETER
from service.api.wire.route import service_of
from service.errors import UnknownModel
from service.inference.head_vectors import names_of
from service.models.served import ServedModel

OWNER = "headscope"

router = APIRouter(tags=["openai"])


class OpenAIModel(BaseModel):
    """Served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    """Unix time in seconds at which the artifact's manifest was written."""
    owned_by: str = OWNER
    outputs: tuple[str, ...]
    """Names of `outputs` of /encode that the model has."""


class OpenAIModels(BaseModel):
    """All served models, the default first."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]


@router.get("/v1/models")
async def models(request: Request) -> OpenAIModels:
    """List the served models, the default first, then their aliases."""
    named = service_of(request).models.by_name
    return OpenAIModels(data=[_described(name, model) for name, model in named.items()])


@router.get(f"/v1/models/{MODEL_PARAMETER}", responses={404: ERRORS[404]})
async def model(model: str, request: Request) -> OpenAIModel:
    """Return a served model by its name or alias, which may contain slashes."""
    served = service_of(request).models.by_name.get(model)
    if served is None:
        raise UnknownModel("unknown model; GET /v1/models lists the served models")
    return _described(model, served)


def _described(name: str, model: ServedModel) -> OpenAIModel:
    written = model.artifact.path(MANIFEST).stat().st_mtime
    outputs = names_of(model.artifact.manifest.task)
    return OpenAIModel(id=name, created=int(written), outputs=outputs)
