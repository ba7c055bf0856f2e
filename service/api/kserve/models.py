"""`GET /v2`, `/v2/health/…`, `/v2/models/{model}` and `/v2/repository`: metadata, state, errors.

The repository is KServe's model repository extension: index, load and unload.
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md

A model's name may contain slashes, percent-encoded or not, as in
`sentence-transformers/all-MiniLM-L6-v2`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Literal

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from service.api.drop_in.embedding import json_error
from service.api.kserve.outputs import ATTENTION, DATATYPES, INPUT, OUTPUT_OF, TENSORS
from service.api.wire.media import MODEL_PARAMETER
from service.api.wire.replies import problems_in_form, replies
from service.api.wire.route import ApiExchange, admin_errors
from service.api.wire.schemas import documented_body, named
from service.artifacts.repository import Target
from service.errors import EngineUnavailable, InvalidRequest, ServiceError, UnknownModel
from service.inference.encoding import EncodeOptions
from service.models.control import State
from service.models.served import ServedModel
from service.system.distribution import version

STATUSES = {422: 400, 429: 503}
"""Native status → status of Triton's HTTP front end: of TRITONSERVER_ERROR_INVALID_ARG for invalid
requests, of UNAVAILABLE for a full queue."""
ERRORS = problems_in_form(named("KServeError", {"error": str}), STATUSES)
"""Error replies of a route, for the OpenAPI document."""
ERRORS[400]["description"] = "Invalid request, or not ready"
ERRORS[404]["description"] = "Unknown model or version"


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error: its message."""
    return json_error(error, {"error": error.detail}, STATUSES)


MODEL = f"/v2/models/{MODEL_PARAMETER}"
VERSIONED = MODEL + "/versions/{version}"
"""Path with a version. Its decorator comes last, so that it is registered before `MODEL`, which
matches any path."""
PLATFORMS = {"openvino": "openvino", "pytorch": "pytorch_libtorch"}
"""Runtime → Triton's name of its platform; other runtimes use ONNX Runtime."""
NOT_METADATA = {
    "infer": 405,
    **dict.fromkeys(("config", "stats", "generate", "generate_stream", "trace/setting"), 404),
}
"""Path suffix of other KServe or Triton routes → status; the suffix is not part of a name."""

EXTENSIONS = ("binary_tensor_data", "model_repository")
"""Supported extensions of the protocol, by Triton's names."""

router = APIRouter(tags=["kserve"])


class NotReady(ServiceError, status=400):
    """Error of a service or model that is not ready; the protocol requires 400 … 499."""


_SERVER = {"name": str, "version": str, "extensions": [str]}


@router.get("/v2", responses=replies(_SERVER, {}))
async def server() -> JSONResponse:
    """Return the service's name and version, and the supported protocol extensions."""
    content = {"name": "headscope", "version": version(), "extensions": EXTENSIONS}
    return JSONResponse(content)


@router.get("/v2/health/live", response_class=Response)
@router.head("/v2/health/live", include_in_schema=False)
async def live() -> Response:
    """Return 200 while the process answers."""
    return Response()


@router.get("/v2/health/ready", response_class=Response, responses={400: ERRORS[400]}, name="ready")
@router.head("/v2/health/ready", include_in_schema=False)
async def service_ready(exchange: ApiExchange) -> Response:
    """Return 200 if every model computes a real request in every worker."""
    with not_ready_errors():
        await exchange.service.readiness.check()
    return Response()


@contextlib.contextmanager
def not_ready_errors() -> Iterator[None]:
    """Convert `EngineUnavailable` to the protocol's error."""
    try:
        yield
    except EngineUnavailable as error:
        raise NotReady(error.detail) from error


_TENSOR = {"name": str, "datatype": str, "shape": ([int], "−1 is any size.")}
METADATA = named(
    "ModelMetadata",
    {"name": str, "versions": [str], "platform": str, "inputs": [_TENSOR], "outputs": [_TENSOR]},
)


@router.get(
    MODEL + "/ready", response_class=Response, responses={400: ERRORS[400], 404: ERRORS[404]}
)
@router.get(VERSIONED + "/ready", include_in_schema=False)
async def ready(exchange: ApiExchange, model: str) -> Response:
    """Return 200 if the model computes a real request in this process."""
    with not_ready_errors():
        chosen = loaded_model(exchange, model)
        if exchange.service.readiness.draining:
            raise EngineUnavailable("the service is stopping")
        if failure := (await chosen.health.check())[0]:
            raise EngineUnavailable(failure)
    exchange.check_expected()
    return Response()


@router.get(MODEL, responses=replies(METADATA, {404: ERRORS[404]}))
@router.get(VERSIONED, include_in_schema=False)
async def metadata(exchange: ApiExchange, model: str) -> Response:
    """Return the input and output tensors of a model."""
    for ending, status in NOT_METADATA.items():
        if model.endswith(f"/{ending}"):
            raise HTTPException(status)
    chosen = loaded_model(exchange, model)
    exchange.check_expected()
    return JSONResponse(describe(chosen))


async def model_of_path(exchange: ApiExchange, name: str) -> ServedModel:
    """Return the model that a path names, loading it first if it is loaded on demand."""
    return _noted(exchange, await exchange.chosen_model(_asked(exchange, name)))


def loaded_model(exchange: ApiExchange, name: str) -> ServedModel:
    """Return the loaded model that a path names; a single served model answers to every name."""
    return _noted(exchange, exchange.service.models.named(_asked(exchange, name)))


def _asked(exchange: ApiExchange, name: str) -> str:
    if not name:
        raise InvalidRequest("the path names no model: /v2/models/NAME")
    version = exchange.scope["path_params"].get("version")
    return str(Target(name, version)) if version else name


def _noted(exchange: ApiExchange, model: ServedModel) -> ServedModel:
    asked: dict[str, str] = exchange.scope["path_params"]
    if asked.get("version", model.version) != model.version:
        raise UnknownModel(f"{model.name} is served in version {model.version} only")
    exchange.bind_model(model, asked["model"])
    return model


def describe(model: ServedModel) -> dict[str, object]:
    """Return the metadata of a model."""
    inference, manifest = model.inference, model.inference.manifest
    maps = {field.tensor for field in ATTENTION} if manifest.static else {}
    outputs = []
    for name, field in TENSORS.items():
        sizes: Mapping[str, int] = {"2": 2, "4": 4}
        if output := OUTPUT_OF.get(name):
            if not output.offered(manifest):
                continue
            options = EncodeOptions((output.name,), role="document")
            sizes = output(options, manifest, inference.vectors).sizes
        if name not in maps:
            shape = [-1, *(sizes[axis] for axis in field.axes[field.ragged :])]
            datatype = DATATYPES[field.dtype]
            outputs.append({"name": name, "datatype": datatype, "shape": shape})
    return {
        "name": model.name,
        "versions": [model.version],
        "platform": PLATFORMS.get(manifest.runtime, "onnxruntime_onnx"),
        "inputs": [{"name": INPUT, "datatype": "BYTES", "shape": [-1]}],
        "outputs": outputs,
    }


STATES: dict[State, Literal["READY", "UNAVAILABLE", "LOADING", "UNLOADING"]] = {
    "serving": "READY",
    "loaded": "READY",
    "loading": "LOADING",
    "draining": "UNLOADING",
    "available": "UNAVAILABLE",
    "failed": "UNAVAILABLE",
}
"""State → state of the protocol."""

repository = APIRouter(prefix="/v2/repository", tags=["kserve"])


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class IndexRequest(_Body):
    """Request body of the index."""

    ready: bool = Field(False, description="List only versions that serve.")


class LoadParameters(_Body):
    """Parameters of a load."""

    version: str | None = Field(None, min_length=1, max_length=64)


class LoadRequest(_Body):
    """Request body of a load."""

    parameters: LoadParameters = LoadParameters()


class UnloadParameters(LoadParameters):
    """Parameters of an unload."""

    unload_dependents: bool = False


class UnloadRequest(_Body):
    """Request body of an unload."""

    parameters: UnloadParameters = UnloadParameters()


_RESPONSES = admin_errors(ERRORS)
_post = partial(repository.post, response_class=Response, responses=_RESPONSES)
"""Decorator of a route whose reply has no body."""
_ENTRY = {"name": str, "version": str, "state": str, "reason": str}


@repository.post(
    "/index", responses=replies([_ENTRY], _RESPONSES), openapi_extra=documented_body(IndexRequest)
)
async def index(exchange: ApiExchange) -> JSONResponse:
    """List all versions that the service has or can load; an admin key is needed."""
    asked = await exchange.read_admin(IndexRequest)
    control = exchange.service.control
    entries = [
        {
            "name": own.name,
            "version": own.version,
            "state": STATES[own.state],
            "reason": own.reason or "",
        }
        for own in control.versions(await control.refresh())
    ]
    return JSONResponse([one for one in entries if one["state"] == "READY" or not asked.ready])


@_post(f"/models/{MODEL_PARAMETER}/load", openapi_extra=documented_body(LoadRequest))
async def load(exchange: ApiExchange, model: str) -> Response:
    """Load a model, or swap its version; an admin key is needed."""
    wanted = (await exchange.read_admin(LoadRequest)).parameters
    await exchange.service.control.load(Target(model, wanted.version))
    return Response()


@_post(f"/models/{MODEL_PARAMETER}/unload", openapi_extra=documented_body(UnloadRequest))
async def unload(exchange: ApiExchange, model: str) -> Response:
    """Unload a model, or one version of it; an admin key is needed."""
    wanted = (await exchange.read_admin(UnloadRequest)).parameters
    exchange.service.control.unload(Target(model, wanted.version))
    return Response()
