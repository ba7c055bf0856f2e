"""`GET /v1/models` and errors, in OpenAI's format."""

from __future__ import annotations

import re
from typing import Literal

import orjson
from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from model.artifact.manifest import MANIFEST
from service.api.wire.media import MODEL_PARAMETER
from service.api.wire.problems import error_reply, problems_in_form
from service.api.wire.route import ApiExchange
from service.errors import (
    NoEmbeddings,
    Overloaded,
    ServiceError,
    Unauthorized,
    UnknownModel,
    Unprocessable,
)
from service.inference.outputs.declared import names_of
from service.models.served import Modality, ServedModel

INVALID = 400
"""Status of requests that cannot be satisfied, 422 in other dialects."""
CODES: dict[int, str] = {
    Unauthorized.status: "invalid_api_key",
    UnknownModel.status: "model_not_found",
    Overloaded.status: "rate_limit_exceeded",
}
"""Status → OpenAI's error code; other errors use their own name."""
_PARAM = re.compile(r"(?!body)([a-z_]+)(?=[:.[])")
"""Pattern of the field's name at the start of an error message."""


class OpenAIErrorDetail(BaseModel):
    """Message, type and code of an error, and the field that caused it."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """Error in OpenAI's format."""

    error: OpenAIErrorDetail


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error."""
    named = _PARAM.match(error.detail)
    body = {
        "message": error.detail,
        "type": "invalid_request_error" if error.status < 500 else "server_error",
        "param": "model" if isinstance(error, UnknownModel) else named and named[1],
        "code": CODES.get(error.status, error.slug.replace("-", "_")),
    }
    response = error_reply(error, orjson.dumps({"error": body}), "application/json")
    if error.status == Unprocessable.status:
        response.status_code = INVALID
    return response


ERRORS = problems_in_form(OpenAIError, without={Unprocessable.status}) | {
    INVALID: {"description": "Invalid JSON or invalid input", "model": OpenAIError},
    NoEmbeddings.status: {"description": "The model does not embed texts", "model": OpenAIError},
    "default": {"description": "Any other error", "model": OpenAIError},
}
"""Error replies of a route, for the OpenAPI document."""


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
async def models(exchange: ApiExchange) -> OpenAIModels:
    """List the loaded models, the default first, their aliases, and models loaded on demand."""
    service = exchange.service
    unloaded = await service.control.on_demand()
    listed = [_described(name, model) for name, model in service.models.by_name.items()]
    listed += [OpenAIModel(id=name, created=created) for name, created in unloaded.items()]
    return OpenAIModels(data=listed)


@router.get(f"/v1/models/{MODEL_PARAMETER}", responses={404: ERRORS[404]})
async def model(model: str, exchange: ApiExchange) -> OpenAIModel:
    """Return a model by its name or alias, which may contain slashes."""
    service = exchange.service
    if served := service.models.by_name.get(model):
        return _described(model, served)
    created = (await service.control.on_demand()).get(model)
    if created is None:
        raise UnknownModel("unknown model; GET /v1/models lists the served models")
    return OpenAIModel(id=model, created=created)


def _described(name: str, model: ServedModel) -> OpenAIModel:
    written = model.artifact.path(MANIFEST).stat().st_mtime
    outputs = names_of(model.artifact.manifest)
    return OpenAIModel(id=name, created=int(written), outputs=outputs, modalities=model.modalities)
