"""Routes in Cohere's formats, and Jina's `/v1/rerank`.

`/v2/embed` and `/v1/embed`: unit vectors of texts or pictures. A reply of version 1 to a request
without types is a bare list of vectors. `/v2/rerank` and `/v1/rerank`: documents by relevance.
Requests of Jina and of version 1 of Cohere's API cannot be distinguished, so a reply of the latter
has the fields of both. vLLM's requests share both paths: see `service.api.dialects`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Annotated, Literal

import orjson
from fastapi import APIRouter
from pydantic import Field, model_validator
from pydantic.json_schema import WithJsonSchema
from starlette.responses import Response

from model.numerics.quantization import FEATURES_PER_BYTE
from service.api.drop_in.embedding import (
    BAD_REQUEST,
    FORMS,
    UNSATISFIABLE,
    USAGE,
    EmbeddingType,
    check_cut,
    check_embedder,
    json_error,
    prepare_embedding,
    prompt_for,
    usage,
)
from service.api.drop_in.scores import Documents, Ranking, ScoresRequest, ranked
from service.api.requests import LenientRequest, list_of
from service.api.wire.media import JSON, Unwritten
from service.api.wire.pictures import ONE_PART, content_part, picture_at, wrong
from service.api.wire.replies import WARNED, problems_in_form, replies, warning_field
from service.api.wire.route import CHARACTER_BYTES, ApiExchange, JsonRoute, PartsResponse
from service.api.wire.schemas import any_of, named, schema
from service.errors import NoTaskHead, ServiceError, Unprocessable
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions
from service.inference.ranking.choice import RankTexts
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Input
from service.inference.tokenization.tokenizer import Options


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error in Cohere's form."""
    return json_error(error, {"message": error.detail}, UNSATISFIABLE)


ERRORS = problems_in_form(named("CohereError", {"message": str}), UNSATISFIABLE)
"""Error replies of Cohere's routes, for the OpenAPI document."""


def jina_error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error; a model that cannot answer has status 400 in both APIs."""
    body = {"detail": error.detail, "message": error.detail}
    return json_error(error, body, {NoTaskHead.status: BAD_REQUEST})


JINA_ERRORS = problems_in_form(named("JinaError", {"detail": str, "message": str}))


DOCUMENTS_PER_UNIT = 100
"""Number of documents of a query that Cohere bills as one search unit."""


META = named(
    "Meta",
    {
        "api_version": {"version": str},
        "billed_units": {"input_tokens?": int, "search_units?": int},
        "warnings?": ([str], "Absent without warnings."),
    },
)
"""Schema of the API version and usage of a reply."""


def meta(version: str, units: Mapping[str, int], timings: Timings) -> dict[str, object]:
    """Return the `meta` of a reply."""
    fields = {"api_version": {"version": version}, "billed_units": units}
    warnings = timings.warnings.sentences()
    return {**fields, "warnings": warnings} if warnings else {**fields}


def searched(version: str, documents: int, timings: Timings) -> dict[str, object]:
    """Return the `meta` of a ranking."""
    return meta(version, {"search_units": -(-documents // DOCUMENTS_PER_UNIT)}, timings)


router = APIRouter(route_class=JsonRoute, tags=["cohere"])
MAX_TEXTS = 96
"""Maximum number of texts in one request, as at Cohere."""
InputType = Literal["search_document", "search_query", "classification", "clustering", "image"]


def _input(value: object, index: int) -> Input:
    match value:
        case {"content": [part]}:
            return content_part(part, f"inputs[{index}].content[0]")
    raise wrong(
        f"inputs[{index}] is not a single text or picture, each of which has a vector: send one "
        "part of content in each input"
    )


def _image(value: object, index: int) -> Input:
    return picture_at(value, f"images[{index}]")


_ITEMS = "a list with at least one item is needed"


class CohereEmbedRequest(LenientRequest):
    """Request body of `POST /v2/embed` and `POST /v1/embed`."""

    needs = check_embedder

    texts: list[str] | None = Field(None, description="At most 96.")
    images: (
        Annotated[
            list[Input],
            list_of(_image, _ITEMS),
            WithJsonSchema(schema([schema(str, format="uri")])),
        ]
        | None
    ) = Field(None, description="In place of `texts`: data URLs or addresses of pictures.")
    inputs: (
        Annotated[
            list[Input], list_of(_input, _ITEMS), WithJsonSchema(schema([{"content": ONE_PART}]))
        ]
        | None
    ) = Field(None, description="In place of `texts`: contents of one text or picture each.")
    input_type: InputType | None = Field(
        None, description="Chooses a prompt of the checkpoint; without effect where it names none."
    )
    embedding_types: list[EmbeddingType] | None = Field(
        None, min_length=1, description="Types in which each vector is returned; float by default."
    )
    truncate: Literal["NONE", "START", "END"] = Field(
        "END", description="Side from which long texts are truncated; NONE rejects them."
    )
    max_tokens: int | None = Field(
        None, ge=1, description="Maximum tokens of a text; the model's limit by default."
    )
    output_dimension: int | None = Field(
        None, description="Keep the first n, then normalise; all by default."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> CohereEmbedRequest:
        if [self.texts, self.images, self.inputs].count(None) != 2:
            raise wrong("one of `texts`, `images` and `inputs` is needed, and no other beside it")
        if self.input_type == "image" and any(isinstance(given, str) for given in self.given):
            raise wrong("input_type image is for pictures: leave it out")
        if not 1 <= len(self.given) <= MAX_TEXTS:
            raise wrong(f"{len(self.given)} inputs in one request; 1 to {MAX_TEXTS} are taken")
        return self

    @property
    def given(self) -> list[Input]:
        """Inputs of the request, from `texts`, `images` or `inputs`."""
        return [*(self.texts or self.images or self.inputs or ())]

    @property
    def types(self) -> list[EmbeddingType]:
        """Types of the vectors, without duplicates."""
        return list(dict.fromkeys(self.embedding_types or ["float"]))

    def options(self, inference: Inference) -> Options:
        """Return the tokenisation options."""
        kind = None if self.input_type == "image" else self.input_type
        prompt = prompt_for(inference, kind, "input_type")
        direction: Literal["left", "right"] = "left" if self.truncate == "START" else "right"
        most = self.max_tokens and min(self.max_tokens, inference.limits.max_tokens)
        truncate = self.truncate != "NONE"
        return Options(truncate, direction, prompt, max_tokens=most, naming="texts[{}]")

    def dimensions(self, size: int) -> int | None:
        """Return the number of leading features to keep; None for all."""
        kept = self.output_dimension
        if kept is not None and not 1 <= kept <= size:
            raise Unprocessable(f"output_dimension {kept} is not in 1 … {size}")
        whole = (size if kept is None else kept) % FEATURES_PER_BYTE == 0
        if not whole and {"binary", "ubinary"}.intersection(self.types):
            raise Unprocessable(
                "binary vectors need a multiple of 8 features: set output_dimension"
            )
        return kept


_EMBEDDINGS = {
    "float?": [[float]],
    **{f"{name}?": [[int]] for name in ("int8", "uint8", "binary", "ubinary")},
    "base64?": [str],
}
_REPLY = {"id": str, "texts": [str], "meta": META}
EMBED_REPLY = named(
    "EmbedReply",
    {
        **_REPLY,
        "response_type": "embeddings_by_type",
        "embeddings": named("Embeddings", _EMBEDDINGS),
    },
)
EMBED_FLOATS_REPLY = named(
    "EmbedFloatsReply", {**_REPLY, "response_type": "embeddings_floats", "embeddings": [[float]]}
)
"""Schema of the vectors of a `POST /v1/embed` request without types."""


@router.post("/v2/embed", responses=replies(EMBED_REPLY, ERRORS))
async def embed(body: CohereEmbedRequest, exchange: ApiExchange) -> Response:
    """Return a unit vector of each text or picture in every requested type."""
    return await _answer(body, exchange, "2", by_type=True)


@router.post("/v1/embed", responses=replies(any_of(EMBED_REPLY, EMBED_FLOATS_REPLY), ERRORS))
async def embed_v1(body: CohereEmbedRequest, exchange: ApiExchange) -> Response:
    """Return a unit vector of each text or picture: by type if the request names types."""
    return await _answer(body, exchange, "1", by_type=body.embedding_types is not None)


async def _answer(
    body: CohereEmbedRequest, exchange: ApiExchange, version: str, *, by_type: bool
) -> Response:
    """Reply in a version of Cohere's interface, with vectors keyed by their types or bare."""
    inference = exchange.model.inference
    body.check_model(inference)
    check_cut(body.given, body.max_tokens, "max_tokens")
    kept, options = body.dimensions(inference.vectors.kept()), body.options(inference)
    wanted = EncodeOptions(("pooled",), dimensions=kept, normalize=True)
    prepared = await prepare_embedding(exchange, body.given, options, wanted)
    feature_bytes = sum(FORMS[name].feature_bytes for name in body.types)
    texts = [given for given in body.given if isinstance(given, str)]
    exchange.reserve(prepared.nbytes(feature_bytes) + CHARACTER_BYTES * sum(map(len, texts)))
    vectors, timings = await prepared.vectors(), prepared.timings

    def pieces() -> Unwritten:
        kind = "embeddings_by_type" if by_type else "embeddings_floats"
        yield (orjson.dumps({"id": uuid.uuid4(), "response_type": kind})[:-1] + b',"embeddings":')
        for place, name in enumerate(body.types):
            if by_type:
                yield b'%b"%b":' % (b"," if place else b"{", name.encode())
            for number, vector in enumerate(vectors):
                yield b"," if number else b"["
                yield from FORMS[name].pieces(vector)
            yield b"]"
        yield b"}," if by_type else b","
        units = meta(version, {"input_tokens": timings.tokens}, timings)
        yield orjson.dumps({"texts": texts, "meta": units})[1:]

    return PartsResponse([pieces()], JSON, timings)


class CohereRankRequest(ScoresRequest):
    """Request of `POST /v2/rerank`, and base of the `POST /v1/rerank` request."""

    query: str
    documents: Documents
    top_n: int | None = Field(None, ge=1, description="Maximum number of results; all when null.")
    max_tokens_per_doc: int = Field(
        4096, ge=1, description="Tokens after which a document is cut, if the model takes as many."
    )
    raw_scores: bool = Field(
        False, description="Own field: logits without a sigmoid, which do not saturate at 1.0."
    )

    @property
    def returned(self) -> bool:
        """Whether each result includes its document."""
        return False

    async def ranking(self, exchange: ApiExchange) -> Ranking:
        """Reserve the reply, and score the documents, each cut to `max_tokens_per_doc`."""
        texts = RankTexts([self.query], self.documents, Options(truncate=True))
        most = self.max_tokens_per_doc
        return await ranked(exchange, texts, returned=self.returned, max_tokens=most)

    def results(self, ranking: Ranking) -> list[dict[str, object]]:
        """Return the first `top_n` results, the largest score first."""
        return [
            {"index": index, "relevance_score": score}
            | ({"document": {"text": self.documents[index]}} if self.returned else {})
            for index, score in ranking.best(self.top_n, raw=self.raw_scores)
        ]

    def content(self, exchange: ApiExchange, ranking: Ranking) -> object:
        """Return the reply of `POST /v2/rerank`."""
        del exchange
        meta = searched("2", len(self.documents), ranking.timings)
        return {"id": uuid.uuid4(), "results": self.results(ranking), "meta": meta}


_RANK = {"index": int, "relevance_score": float}
RERANK_REPLY = named("RerankReply", {"id": str, "results": [_RANK], "meta": META})


class JinaRerankRequest(CohereRankRequest):
    """Request body of `POST /v1/rerank`."""

    return_documents: bool = Field(True, description="Whether each result includes its document.")

    @property
    def returned(self) -> bool:
        """Whether each result includes its document."""
        return self.return_documents

    def content(self, exchange: ApiExchange, ranking: Ranking) -> object:
        """Return the reply of `POST /v1/rerank`."""
        return {
            "id": uuid.uuid4(),
            "model": exchange.model.name,
            "usage": usage(ranking.timings),
            "results": self.results(ranking),
            "meta": searched("1", len(self.documents), ranking.timings),
            **warning_field(ranking.timings.warnings),
        }


JINA_RERANK_REPLY = named(
    "JinaRerankReply",
    {
        "id": str,
        "model": str,
        "usage": USAGE,
        "results": [{**_RANK, "document?": {"text": str}}],
        "meta": META,
        **WARNED,
    },
)
ROUTERS = (router,)
