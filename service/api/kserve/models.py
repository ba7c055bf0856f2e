"""`GET /v2/models/{model}` and its `/ready`: the tensors of a model, and whether it answers.

A model's name may hold slashes, as `sentence-transformers/all-MiniLM-L6-v2` does, percent-encoded
or not.
"""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from service.api.kserve.errors import ERRORS
from service.api.kserve.health import telling_not_ready
from service.api.kserve.outputs import ATTENTION, DATATYPES, INPUT, OutputName
from service.api.wire.route import answered_by, name_model, service_of
from service.errors import EngineUnavailable, InvalidRequest, UnknownModel
from service.serving.models import ServedModel

MODEL = "/v2/models/{model:path}"
VERSIONED = MODEL + "/versions/{version}"
"""To be added first (decorators run from the last): the other takes any path."""
VERSION = "1"
"""The only one of every model: another artifact is another model."""
PLATFORMS = {"openvino": "openvino", "pytorch": "pytorch_libtorch"}
"""Triton's names of runtimes; all others are ONNX Runtime's."""
NOT_METADATA = {
    "infer": 405,
    **dict.fromkeys(("config", "stats", "generate", "generate_stream", "trace/setting"), 404),
}
"""Status of what follows a model's name elsewhere, and is no part of it."""

router = APIRouter(tags=["kserve"])


class TensorMetadata(BaseModel):
    """A tensor that goes in or comes out; −1 is any size."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """A model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


@router.get(MODEL + "/ready", response_class=Response, responses={400: ERRORS[400]})
@router.get(VERSIONED + "/ready", include_in_schema=False)
async def ready(request: Request, model: str) -> Response:
    """The model's real path works in this process."""
    chosen = model_of_path(request, model)
    with telling_not_ready():
        if service_of(request).readiness.draining:
            raise EngineUnavailable("the service is stopping")
        await chosen.readiness.check()
    return _named(Response(), request, chosen)


@router.get(MODEL, response_model=ModelMetadata, responses={404: ERRORS[404]})
@router.get(VERSIONED, include_in_schema=False)
async def metadata(request: Request, model: str) -> Response:
    """The tensors of a model."""
    for ending, status in NOT_METADATA.items():
        if model.endswith(f"/{ending}"):
            raise HTTPException(status)
    chosen = model_of_path(request, model)
    return _named(JSONResponse(describe(chosen).model_dump()), request, chosen)


def model_of_path(request: Request, name: str) -> ServedModel:
    """The model that a path names; one model alone answers to every name.

    Raises:
        InvalidRequest: the path names none.
        UnknownModel: there is none of that name, or no such version of it.

    """
    if not name:
        raise InvalidRequest("the path names no model: /v2/models/NAME")
    if request.path_params.get("version", VERSION) != VERSION:
        raise UnknownModel(f"there is no such version; the only one of every model is {VERSION}")
    model = service_of(request).models.named(name)
    answered_by(request, model)
    return model


def describe(model: ServedModel) -> ModelMetadata:
    """The content of a model's metadata."""
    inference = model.inference
    sizes = {"pooled": inference.vectors.kept(), "embeddings": inference.config.hidden_size}
    trailing = {name: [size] for name, size in sizes.items()}
    trailing |= {"attention_shapes": [4], "offsets": [2]}
    names: list[OutputName] = [
        name for name in DATATYPES if inference.manifest.gives_maps or name not in ATTENTION
    ]
    return ModelMetadata(
        name=model.name,
        versions=[VERSION],
        platform=PLATFORMS.get(inference.manifest.runtime, "onnxruntime_onnx"),
        inputs=[TensorMetadata(name=INPUT, datatype="BYTES", shape=[-1])],
        outputs=[
            TensorMetadata(name=name, datatype=DATATYPES[name], shape=[-1, *trailing.get(name, [])])
            for name in names
        ],
    )


def _named(response: Response, request: Request, model: ServedModel) -> Response:
    name_model(response, service_of(request).models, request.path_params["model"], model)
    return response
