"""Routes in Infinity's formats: /embeddings, /classify, /models, and its form of /rerank.

`/rerank` itself is in `service.api.dialects`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from fastapi import APIRouter
from pydantic import (
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticKnownError
from starlette.responses import JSONResponse, Response

from model.numerics.task_head import TaskConfig, TaskKind
from service.api.drop_in.embedding import (
    BAD_REQUEST,
    CREATED,
    EMBEDDING_ITEM,
    NESTED_FIELDS,
    USAGE,
    ListForm,
    check_embedder,
    json_error,
    listed_models,
    prepare_embedding,
    usage,
    without_prompt,
)
from service.api.drop_in.scores import (
    PREDICTION,
    Ranking,
    ScoresRequest,
    label_bytes,
    predictions,
    ranked,
)
from service.api.requests import LenientRequest
from service.api.wire.pictures import picture_at, wrong
from service.api.wire.replies import WARNED, problems_in_form, replies, warning_field
from service.api.wire.route import ApiExchange, JsonRoute
from service.api.wire.schemas import any_of, named, schema
from service.errors import InvalidRequest, NoTaskHead, ServiceError, Unprocessable
from service.exchange import ErrorForm
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions
from service.inference.ranking.choice import RankTexts
from service.inference.tasks.task_heads import probabilities, required_task, task_scores
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Input
from service.inference.tokenization.tokenizer import Options
from service.models.served import ServedModel
from service.settings.served import of_model

_STATUSES = {404: BAD_REQUEST, NoTaskHead.status: BAD_REQUEST}
"""Native status → Infinity's status, of unknown models and models that cannot answer."""


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error."""
    status = _STATUSES.get(error.status, error.status)
    nested = {"message": error.detail, "type": None, "param": None, "code": status}
    body: dict[str, object] = {"error": nested}
    if isinstance(error, Unprocessable):
        body["detail"] = [{"loc": ["body"], "msg": error.detail, "type": "value_error"}]
    return json_error(error, body, _STATUSES)


ERRORS = problems_in_form(named("InfinityError", {**NESTED_FIELDS, "detail?": [dict]}), _STATUSES)
"""Error replies of a route, with FastAPI's `detail` if the body does not fit the schema."""


MAX_CHARACTERS = 8192 * 15
"""Maximum characters of a text as it is sent, before it is stripped and truncated."""
MAX_TEXTS = 2048
NO_MODEL = "default/not-specified"
"""Model name that Infinity's clients send by default."""


def _bounded(value: object) -> object:
    """Reject a text that is too long as it was sent; pydantic counts after it strips."""
    if isinstance(value, str) and len(value) > MAX_CHARACTERS:
        raise PydanticKnownError("string_too_long", {"max_length": MAX_CHARACTERS})
    return value


Text = Annotated[
    str,
    StringConstraints(max_length=MAX_CHARACTERS, strip_whitespace=True),
    BeforeValidator(_bounded),
]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]


class InfinityRequest(LenientRequest):
    """Fields of every request."""

    error_form: ClassVar[ErrorForm | None] = error_response

    @field_validator("model")
    @classmethod
    def _named(cls, name: str | None) -> str | None:
        return None if name == NO_MODEL else name


_ENVELOPE = {"model": str, "usage": USAGE, "id": str, "created": int, **WARNED}
"""Schema of `envelope`, without `object`."""


def envelope(kind: str, model: str, timings: Timings) -> dict[str, object]:
    """Return the fields of every reply beside its results."""
    return {
        "object": kind,
        "model": model,
        "usage": usage(timings),
        "id": f"infinity-{uuid.uuid4()}",
        "created": int(time.time()),
        **warning_field(timings.warnings),
    }


class InfinityRerankRequest(InfinityRequest, ScoresRequest):
    """Request body of `POST /rerank` with `documents`."""

    form_fields: ClassVar[frozenset[str]] = frozenset({"documents"})

    query: Text
    documents: Texts = Field(description="Texts to rank.")
    return_documents: bool = Field(False, description="Whether each result includes its document.")
    raw_scores: bool = Field(
        False, description="Logits without a sigmoid; MaxSim scores never get one."
    )
    top_n: int | None = Field(None, gt=0, description="Maximum number of results; all when null.")

    async def ranking(self, exchange: ApiExchange) -> Ranking:
        """Reserve the reply, and score the documents; long documents are cut."""
        texts = RankTexts([self.query], self.documents, Options(truncate=True))
        return await ranked(exchange, texts, returned=self.return_documents)

    def content(self, exchange: ApiExchange, ranking: Ranking) -> object:
        """Return the reply, the largest score first."""
        results = [
            {
                "relevance_score": score,
                "index": index,
                "document": self.documents[index] if self.return_documents else None,
            }
            for index, score in ranking.best(self.top_n, raw=self.raw_scores)
        ]
        return envelope("rerank", exchange.model.name, ranking.timings) | {"results": results}


_RANK = {"relevance_score": float, "index": int, "document?": str}
RERANK_REPLY = named("InfinityRerankReply", {**_ENVELOPE, "object": "rerank", "results": [_RANK]})


router = APIRouter(route_class=JsonRoute, tags=["infinity"])
_KINDS: tuple[TaskKind, ...] = ("sequence_classification",)
_CLASSIFIER = "a classifier (…ForSequenceClassification)"
_CUT = Options(truncate=True, naming="input[{}]")


class ClassifyRequest(InfinityRequest):
    """Request body of `POST /classify`."""

    input: Texts = Field(description="Texts to classify; long texts are cut.")
    raw_scores: bool = Field(
        False, description="Accepted without effect, as in Infinity; `/predict` returns logits."
    )

    def check_model(self, inference: Inference) -> TaskConfig:
        """Return the model's task head."""
        return required_task(inference.manifest, _KINDS, _CLASSIFIER)


CLASSIFY_REPLY = named("ClassifyReply", {**_ENVELOPE, "object": "classify", "data": [[PREDICTION]]})


@router.post("/classify", responses=replies(CLASSIFY_REPLY, ERRORS))
async def classify(body: ClassifyRequest, exchange: ApiExchange) -> Response:
    """Classify each text, the largest score first: softmax of several labels, sigmoid of one."""
    model, caller = exchange.model, exchange.call()
    task = body.check_model(model.inference)
    prepared = await model.inference.prepare(body.input, _CUT, caller, "encode")
    exchange.reserve(label_bytes(len(body.input), task.labels))
    logits = await task_scores(model.inference, prepared, task)

    def content() -> object:
        data = [predictions(row, task.labels, probabilities(row)) for row in logits]
        return envelope("classify", model.name, prepared.timings) | {"data": data}

    return await exchange.json_reply(content, prepared.timings)


_TEXT = schema(str, maxLength=MAX_CHARACTERS)
_URL = schema((str, "With `modality` image."), format="uri")
_INPUT = any_of(
    *(schema([_TEXT, ...], maxItems=MAX_TEXTS), _TEXT),
    *(schema([_URL, ...], maxItems=MAX_TEXTS), _URL),
)


def _given(
    value: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
) -> list[Input]:
    """Validate texts, or pictures as data URLs and addresses, by the field `modality`."""
    items = [value] if isinstance(value, str) else value
    if info.data.get("modality") != "image":
        texts: list[Input] = handler(items)
        return texts
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_TEXTS:
        raise wrong(f"input: a picture, or a list of 1 to {MAX_TEXTS} pictures, is needed")
    return [picture_at(item, f"input[{index}]") for index, item in enumerate(items)]


class InfinityEmbeddingsRequest(InfinityRequest):
    """Request body of `POST /embeddings`."""

    modality: Literal["text", "audio", "image"] = Field(
        "text", description="Kind of the inputs; audio is refused."
    )
    input: Annotated[Texts, WrapValidator(_given), WithJsonSchema(_INPUT)] = Field(
        description="A text or a list of texts, which are cut if they are long; with `modality` "
        "image, data URLs or addresses of pictures."
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64 = little-endian float32, one string a vector."
    )
    user: str | None = Field(None, description="Ignored.")
    dimensions: int = Field(
        0, description="The first n of the unit vector, not normalised again; all when 0."
    )

    def check_model(self, inference: Inference) -> None:
        """Check that the model embeds the inputs."""
        check_embedder(inference)
        pictures = inference.manifest.images or inference.tower
        if self.modality == "audio" or (self.modality == "image" and not pictures):
            raise NoTaskHead(
                f"{inference.manifest.model} does not embed {self.modality}: `modality` is text"
            )


EMBEDDINGS_REPLY = named(
    "InfinityEmbeddingsReply", {**_ENVELOPE, "object": "list", "data": [EMBEDDING_ITEM]}
)


@router.post("/embeddings", responses=replies(EMBEDDINGS_REPLY, ERRORS))
async def embeddings(body: InfinityEmbeddingsRequest, exchange: ApiExchange) -> Response:
    """Return a unit vector of each text or picture, or its first `dimensions` features."""
    model = exchange.model
    body.check_model(model.inference)
    size = model.inference.vectors.size()
    if not 0 <= body.dimensions <= size:
        raise InvalidRequest(f"dimensions {body.dimensions} is not in 1 … {size}; 0 is all")
    options = Options(True, prompt_name=without_prompt(model.inference), naming="input[{}]")
    wanted = EncodeOptions(("pooled",), dimensions=size, normalize=True)

    def closing(timings: Timings) -> Mapping[str, object]:
        outer = envelope("list", model.name, timings)
        return {name: value for name, value in outer.items() if name != "object"}

    form = ListForm(
        b'{"object":"list","data":[',
        b'{"object":"embedding","embedding":',
        b',"index":%d}',
        closing,
        body.encoding_format,
        kept=body.dimensions or None,
    )
    prepared = await prepare_embedding(exchange, body.input, options, wanted)
    return await prepared.answer(exchange, form)


NOT_LOADED = "not loaded"
"""Backend of a model that is loaded on demand."""


_MODEL = {
    "id": str,
    "stats": dict[str, float],
    "object": "model",
    "owned_by": ("infinity", "The only value that Infinity's clients accept."),
    "created": (int, CREATED),
    "backend": str,
    "capabilities": ([str], "Capabilities of a loaded model; empty until it is loaded."),
}
MODELS_REPLY = named("InfinityModels", {"data": [_MODEL], "object": str})
models_router = APIRouter(tags=["infinity"])


@models_router.get("/models", responses=replies(MODELS_REPLY, {}))
async def models(exchange: ApiExchange) -> JSONResponse:
    """List the loaded models, the default first, their aliases, and models loaded on demand."""
    settings = exchange.service.settings
    data = [
        _described(name, model, created, of_model(settings, name).max_queue_tokens)
        for name, model, created in await listed_models(exchange)
    ]
    return JSONResponse({"data": data, "object": "list"})


def _described(
    name: str, model: ServedModel | None, created: int, queue_limit: int
) -> dict[str, object]:
    """Describe a model; None is one that is not loaded, of which `queue_limit` is configured."""
    lanes = model.inference.engines.default.lanes.values() if model else ()
    queued = sum(lane.queued_tokens for lane in lanes)
    limit = model.settings.max_queue_tokens if model else queue_limit
    return {
        "id": name,
        "stats": {"queue_fraction": queued / limit, "queue_absolute": float(queued)},
        "object": "model",
        "owned_by": "infinity",
        "created": created,
        "backend": model.inference.engines.default.engine.name if model else NOT_LOADED,
        "capabilities": capabilities(model.artifact.manifest.task) if model else [],
    }


_CAPABILITIES: Mapping[TaskKind, list[str]] = {
    "hybrid": ["embed", "rerank"],
    "late_interaction": ["rerank"],
}


def capabilities(task: TaskConfig | None) -> list[str]:
    """Return the capabilities of a model with this task head: `embed`, `rerank`, `classify`."""
    if task is None:
        return ["embed"]
    if task.kind == "sequence_classification":
        return ["rerank", "classify"] if task.outputs == 1 else ["classify"]
    return _CAPABILITIES.get(task.kind, [])


ROUTERS = (router, models_router)
