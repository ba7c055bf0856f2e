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
from service.models.served import Modality, ServedModel

OWNER = "headscope"

router = APIRouter(tags=["openai"])


class OpenAIModel(BaseModel):
    """Model that a request can choose."""

    id: str
    object: Literal["model"] = "model"
    created: int
    """Unix time in seconds at which the artifact's manifest, or the config of a checkpoint that is
    not loaded, was written."""
    owned_by: str = OWNER
    outputs: tuple[str, ...] | None = None
    """Names of `outputs` of /encode that the model has; None until it is loaded."""
    modalities: tuple[Modality, ...] | None = None
    """Kinds of inputs that the model reads; None until it is loaded."""


class OpenAIModels(BaseModel):
    """All models, the default first."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]


@router.get("/v1/models")
async def models(request: Request) -> OpenAIModels:
    """List the loaded models, the default first, their aliases, and models loaded on demand."""
    service = service_of(request)
    unloaded = await service.control.on_demand()
    listed = [_described(name, model) for name, model in service.models.by_name.items()]
    listed += [OpenAIModel(id=name, created=created) for name, created in unloaded.items()]
    return OpenAIModels(data=listed)


@router.get(f"/v1/models/{MODEL_PARAMETER}", responses={404: ERRORS[404]})
async def model(model: str, request: Request) -> OpenAIModel:
    """Return a model by its name or alias, which may contain slashes."""
    service = service_of(request)
    if served := service.models.by_name.get(model):
        return _described(model, served)
    created = (await service.control.on_demand()).get(model)
    if created is None:
        raise UnknownModel("unknown model; GET /v1/models lists the served models")
    return OpenAIModel(id=model, created=created)


def _described(name: str, model: ServedModel) -> OpenAIModel:
    written = model.artifact.path(MANIFEST).stat().st_mtime
    outputs = names_of(model.artifact.manifest.task)
    return OpenAIModel(id=name, created=int(written), outputs=outputs, modalities=model.modalities)
