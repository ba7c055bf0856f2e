"""`POST /v2/embed` and `POST /v1/embed`: unit vectors of texts or pictures, in Cohere's formats.

A reply of version 1 to a request without types is a bare list of vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import orjson
from fastapi import APIRouter
from pydantic import BaseModel, Field, PlainValidator, model_validator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from model.numerics.quantization import FEATURES_PER_BYTE
from service.api.cohere.replies import ERRORS, FORMS, EmbeddingType, Meta, embedded, new_id
from service.api.drop_in.embedding import Embedding, check_embedder, prepare_embedding
from service.api.drop_in.prompts import prompt_for
from service.api.native.texts import LenientRequest
from service.api.wire.media import JSON, Unwritten
from service.api.wire.pictures import PART_SCHEMA, content_part, picture_at, wrong
from service.api.wire.route import (
    CHARACTER_BYTES,
    ApiExchange,
    JsonRoute,
    PartsResponse,
    reserve,
)
from service.engines.contract import Floats
from service.errors import InputTooLong, Unprocessable
from service.inference.core import Inference
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Input
from service.inference.tokenization.text import Text
from service.inference.tokenization.tokenizer import Options
from service.inference.tokenization.truncation import shorten

router = APIRouter(route_class=JsonRoute, tags=["cohere"])
MAX_TEXTS = 96
"""Maximum number of texts in one request, as at Cohere."""
InputType = Literal["search_document", "search_query", "classification", "clustering", "image"]
_CONTENT = {"type": "array", "items": PART_SCHEMA, "minItems": 1, "maxItems": 1}


def _inputs(value: object) -> list[Input] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise PydanticCustomError("inputs", "a list is needed")
    inputs = []
    for index, item in enumerate(value):
        match item:
            case {"content": [part]}:
                inputs.append(content_part(part, f"inputs[{index}].content[0]"))
            case _:
                raise wrong(
                    f"inputs[{index}] is not a single text or picture, each of which has a vector: "
                    "send one part of content in each input"
                )
    return inputs


def _images(value: object) -> list[Input] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise PydanticCustomError("images", "a list is needed")
    return [picture_at(item, f"images[{index}]") for index, item in enumerate(value)]


class CohereEmbedRequest(LenientRequest):
    """Request body of `POST /v2/embed` and `POST /v1/embed`."""

    texts: list[str] | None = Field(None, description="At most 96.")
    images: Annotated[
        list[Input] | None,
        PlainValidator(_images),
        WithJsonSchema({"type": "array", "items": {"type": "string", "format": "uri"}}),
    ] = Field(None, description="In place of `texts`: data URLs or addresses of pictures.")
    inputs: Annotated[
        list[Input] | None,
        PlainValidator(_inputs),
        WithJsonSchema(
            {"type": "array", "items": {"type": "object", "properties": {"content": _CONTENT}}}
        ),
    ] = Field(None, description="In place of `texts`: contents of one text or picture each.")
    input_type: InputType | None = Field(
        None,
        description="Chooses a prompt of the checkpoint; without effect where it names none.",
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
            raise PydanticCustomError(
                "texts", "one of `texts`, `images` and `inputs` is needed, and no other beside it"
            )
        if self.input_type == "image" and any(isinstance(given, str) for given in self.given):
            raise PydanticCustomError("texts", "input_type image is for pictures: leave it out")
        if not 1 <= len(self.given) <= MAX_TEXTS:
            raise PydanticCustomError(
                "texts",
                "{count} inputs in one request; 1 to {most} are taken",
                {"count": len(self.given), "most": MAX_TEXTS},
            )
        return self

    @property
    def given(self) -> list[Input]:
        """Inputs of the request, from `texts`, `images` or `inputs`."""
        return [*(self.texts or self.images or self.inputs or ())]

    @property
    def given_texts(self) -> list[str]:
        """Inputs that are texts."""
        return [given for given in self.given if isinstance(given, str)]

    @property
    def types(self) -> list[EmbeddingType]:
        """Types of the vectors, without duplicates."""
        return list(dict.fromkeys(self.embedding_types or ["float"]))

    def check_model(self, inference: Inference) -> None:
        """Check that the model embeds texts."""
        check_embedder(inference)

    def options(self, inference: Inference) -> Options:
        """Return the tokenisation options that apply before the texts are cut to `max_tokens`."""
        kind = None if self.input_type == "image" else self.input_type
        prompt = prompt_for(inference, kind, "input_type")
        direction: Literal["left", "right"] = "left" if self.truncate == "START" else "right"
        return Options(self.truncate != "NONE", direction, prompt, naming="texts[{}]")

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

    async def cut(self, texts: list[Text], options: Options) -> None:
        """Cut tokenised texts to `max_tokens`."""
        if self.max_tokens is None:
            return
        if texts[0].picture:
            raise Unprocessable("max_tokens: pictures are not cut: leave it out")
        for index, text in enumerate(texts):
            count = len(text.input_ids) - text.padding_tokens
            if self.truncate == "NONE" and count > self.max_tokens:
                raise InputTooLong(
                    f"texts[{index}] has {count} tokens, more than max_tokens "
                    f"{self.max_tokens}; `truncate` START or END cuts it"
                )
        await shorten(texts, self.max_tokens, options.direction)


_Floats = list[list[float]]  # a field `float` hides the type in its class


class Embeddings(BaseModel):
    """Vectors in each requested type."""

    float: _Floats | None = None
    int8: list[list[int]] | None = None
    uint8: list[list[int]] | None = None
    binary: list[list[int]] | None = None
    ubinary: list[list[int]] | None = None
    base64: list[str] | None = None


class EmbedReply(BaseModel):
    """Vectors in the order of the request."""

    id: str
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"
    embeddings: Embeddings
    texts: list[str]
    meta: Meta


class EmbedFloatsReply(BaseModel):
    """Vectors of a `POST /v1/embed` request without types."""

    id: str
    response_type: Literal["embeddings_floats"] = "embeddings_floats"
    embeddings: list[list[float]]
    texts: list[str]
    meta: Meta


@router.post("/v2/embed", response_model=None, responses={200: {"model": EmbedReply}, **ERRORS})
async def embed(body: CohereEmbedRequest, exchange: ApiExchange) -> Response:
    """Return a unit vector of each text or picture in every requested type."""
    return await _answer(body, exchange, Form("2", by_type=True))


@router.post(
    "/v1/embed",
    response_model=None,
    responses={200: {"model": EmbedReply | EmbedFloatsReply}, **ERRORS},
)
async def embed_v1(body: CohereEmbedRequest, exchange: ApiExchange) -> Response:
    """Return a unit vector of each text or picture: by type if the request names types."""
    return await _answer(body, exchange, Form("1", by_type=body.embedding_types is not None))


@dataclass(frozen=True)
class Form:
    """Format of replies."""

    version: str
    """Version of Cohere's interface."""
    by_type: bool
    """Whether vectors are keyed by the names of their types."""


async def _answer(body: CohereEmbedRequest, exchange: ApiExchange, form: Form) -> Response:
    inference = exchange.model.inference
    body.check_model(inference)
    kept, options = body.dimensions(inference.vectors.kept()), body.options(inference)
    prepared = await prepare_embedding(exchange, Embedding(body.given, options, kept))
    await body.cut(prepared.texts.texts, options)
    prepared.texts.recount()
    feature_bytes = sum(FORMS[name].feature_bytes for name in body.types)
    characters = sum(map(len, body.given_texts))
    size = prepared.nbytes(feature_bytes) + CHARACTER_BYTES * characters
    reserve(exchange, size)
    vectors = await prepared.vectors()
    timings = prepared.timings
    return PartsResponse([reply_pieces(form, body, vectors, timings)], JSON, timings)


def reply_pieces(
    form: Form, body: CohereEmbedRequest, vectors: Sequence[Floats], timings: Timings
) -> Unwritten:
    """Yield the JSON reply."""
    kind = "embeddings_by_type" if form.by_type else "embeddings_floats"
    yield orjson.dumps({"id": new_id(), "response_type": kind})[:-1]
    yield b',"embeddings":{' if form.by_type else b',"embeddings":'
    for place, name in enumerate(body.types):
        if form.by_type:
            yield b'%b"%b":' % (b"," if place else b"", name.encode())
        for number, vector in enumerate(vectors):
            yield b"," if number else b"["
            yield from FORMS[name].pieces(vector)
        yield b"]"
    yield b"}," if form.by_type else b","
    yield orjson.dumps({"texts": body.given_texts, "meta": embedded(form.version, timings)})[1:]
