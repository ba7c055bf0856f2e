"""`POST /embeddings`, `/classify` and `/rerank` in Infinity's formats."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import orjson
from fastapi import APIRouter
from pydantic import BaseModel, Field, ValidationInfo, ValidatorFunctionWrapHandler, WrapValidator
from pydantic.json_schema import WithJsonSchema
from starlette.responses import Response

from model.numerics.task_head import TaskConfig, TaskKind
from service.api.drop_in.embedding import (
    BASE64_BYTES_PER_FLOAT,
    Embedding,
    ListForm,
    check_embedder,
    embed,
)
from service.api.drop_in.prompts import without_prompt
from service.api.drop_in.ranking import Ranking, ranked, ranker
from service.api.infinity.fields import (
    ERRORS,
    MAX_CHARACTERS,
    MAX_TEXTS,
    InfinityReply,
    InfinityRequest,
    Text,
    Texts,
    envelope,
)
from service.api.tei.predict import PREDICTION_BYTES, predictions
from service.api.wire.json_pieces import vector_pieces
from service.api.wire.media import JSON_BYTES_PER_FLOAT, Unwritten
from service.api.wire.pictures import picture_at, wrong
from service.api.wire.route import (
    CHARACTER_BYTES,
    ApiExchange,
    JsonRoute,
    caller_of,
    json_reply,
    reserve,
)
from service.engines.contract import Floats
from service.errors import InvalidRequest, NoTaskHead
from service.inference.core import Inference
from service.inference.tasks.task_heads import probabilities, required_task, task_scores
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Input
from service.inference.tokenization.tokenizer import Options

RANK_BYTES = 88
"""Predicted bytes of a result in JSON, without its document."""
_CUT_DOCUMENTS = Options(truncate=True, naming="documents[{}]")


class InfinityRerankRequest(InfinityRequest):
    """Request body of `POST /rerank` with `documents`."""

    form_fields: ClassVar[frozenset[str]] = frozenset({"documents"})

    query: Text
    documents: Texts = Field(description="Texts to rank.")
    return_documents: bool = Field(False, description="Whether each result includes its document.")
    raw_scores: bool = Field(
        False, description="Logits without a sigmoid; MaxSim scores never get one."
    )
    top_n: int | None = Field(None, gt=0, description="Maximum number of results; all when null.")

    def check_model(self, inference: Inference) -> TaskConfig:
        """Return the model's task head: one label, or a vector for each token."""
        return ranker(inference)


class Rank(BaseModel):
    """Score of a document, its index in the request, and its text if requested."""

    relevance_score: float
    index: int
    document: str | None = None


class RerankReply(InfinityReply):
    """Results, the most relevant document first."""

    object: Literal["rerank"] = "rerank"
    results: list[Rank]


async def rerank(body: InfinityRerankRequest, exchange: ApiExchange) -> Response:
    """Rank the documents, the most relevant to the query first; long documents are cut."""
    model = exchange.model
    body.check_model(model.inference)
    size = RANK_BYTES * len(body.documents)
    if body.return_documents:
        size += CHARACTER_BYTES * sum(map(len, body.documents))
    reserve(exchange, size)
    ranking = await ranked(exchange, body.query, body.documents, _CUT_DOCUMENTS)

    def content() -> object:
        outer = envelope("rerank", model.name, ranking.timings)
        return outer | {"results": ranks(body, ranking)}

    return await json_reply(exchange, content, ranking.timings)


def ranks(body: InfinityRerankRequest, ranking: Ranking) -> list[dict[str, object]]:
    """Return the first `top_n` results, the largest score first."""
    scores = ranking.scores(raw=body.raw_scores)
    return [
        {
            "relevance_score": scores[index],
            "index": index,
            "document": body.documents[index] if body.return_documents else None,
        }
        for index in ranking.order()[: body.top_n]
    ]


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


class Label(BaseModel):
    """Label and its score."""

    score: float
    label: str


class ClassifyReply(InfinityReply):
    """Labels of each text."""

    object: Literal["classify"] = "classify"
    data: list[list[Label]]


@router.post("/classify", response_model=None, responses={200: {"model": ClassifyReply}, **ERRORS})
async def classify(body: ClassifyRequest, exchange: ApiExchange) -> Response:
    """Classify each text, the largest score first: softmax of several labels, sigmoid of one."""
    model, caller = exchange.model, caller_of(exchange)
    task = body.check_model(model.inference)
    prepared = await model.inference.prepare(body.input, _CUT, caller, "encode")
    size = len(body.input) * sum(PREDICTION_BYTES + 2 * len(label) for label in task.labels)
    reserve(exchange, size)
    logits = await task_scores(prepared, task)

    def content() -> object:
        data = [predictions(row, task.labels, probabilities(row)) for row in logits]
        return envelope("classify", model.name, prepared.timings) | {"data": data}

    return await json_reply(exchange, content, prepared.timings)


ITEM_BYTES = 64
"""Predicted bytes of an item in JSON, without its vector."""
_TEXT = {"type": "string", "maxLength": MAX_CHARACTERS}
_URL = {"type": "string", "format": "uri", "description": "With `modality` image."}
_INPUT = {
    "anyOf": [
        {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_TEXTS},
        _TEXT,
        {"type": "array", "items": _URL, "minItems": 1, "maxItems": MAX_TEXTS},
        _URL,
    ]
}


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


class EmbeddingItem(BaseModel):
    """Vector, and the index of its text in the request."""

    object: Literal["embedding"] = "embedding"
    embedding: list[float] | str
    index: int


class EmbeddingsReply(InfinityReply):
    """Vectors in the order of the request."""

    object: Literal["list"] = "list"
    data: list[EmbeddingItem]


@router.post(
    "/embeddings", response_model=None, responses={200: {"model": EmbeddingsReply}, **ERRORS}
)
async def embeddings(body: InfinityEmbeddingsRequest, exchange: ApiExchange) -> Response:
    """Return a unit vector of each text or picture, or its first `dimensions` features."""
    model = exchange.model
    body.check_model(model.inference)
    size = model.inference.vectors.size()
    if not 0 <= body.dimensions <= size:
        raise InvalidRequest(f"dimensions {body.dimensions} is not in 1 … {size}; 0 is all")
    options = Options(True, prompt_name=without_prompt(model.inference), naming="input[{}]")
    return await embed(
        exchange, Embedding([*body.input], options, dimensions=size), form(body, model.name)
    )


def form(body: InfinityEmbeddingsRequest, model: str) -> ListForm:
    """Return Infinity's format of a list of vectors."""
    as_base64, kept = body.encoding_format == "base64", body.dimensions or None

    def item(number: int, vector: Floats) -> Unwritten:
        yield b'{"object":"embedding","embedding":'
        yield from vector_pieces(vector[:kept], as_base64=as_base64)
        yield b',"index":%d}' % number

    def closing(timings: Timings) -> bytes:
        outer = envelope("list", model, timings)
        del outer["object"]
        return b"]," + orjson.dumps(outer)[1:]

    return ListForm(
        b'{"object":"list","data":[',
        item,
        closing,
        ITEM_BYTES,
        BASE64_BYTES_PER_FLOAT if as_base64 else JSON_BYTES_PER_FLOAT,
    )
