"""`POST /v1/embeddings`: a unit vector of each text, in OpenAI's form.

https://platform.openai.com/docs/api-reference/embeddings/create
"""

from __future__ import annotations

from typing import Literal

import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.drop_in.embedding import (
    BASE64_BYTES_PER_FLOAT,
    Embedding,
    ListForm,
    TextsOrIds,
    check_embedder,
    check_given,
    embed,
    vector_json,
)
from service.api.native.texts import LenientRequest
from service.api.openai.errors import ERRORS
from service.api.wire.media import JSON_BYTES_PER_FLOAT
from service.api.wire.route import JsonRoute, model_of, service_of
from service.engines.contract import Floats
from service.errors import Unprocessable
from service.inference.core import Inference
from service.inference.timings import Timings
from service.inference.tokenization.tokenizer import Options

MAX_INPUTS = 2048
"""That OpenAI takes in one request."""
ITEM_BYTES = 64
"""Of an embedding in JSON beside its vector."""

router = APIRouter(route_class=JsonRoute, tags=["openai"])


class EmbeddingsRequest(LenientRequest):
    """`POST /v1/embeddings`; unknown fields are ignored."""

    input: TextsOrIds = Field(
        description="A text, token ids of the model's own tokenizer, or a list of either."
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        "float", description="base64 = little-endian float32, one string a vector."
    )
    dimensions: int | None = Field(
        None, description="Keep the first n, then normalise; all by default."
    )
    user: str | None = Field(None, description="Ignored.")

    def check_model(self, inference: Inference) -> None:
        """Vectors of texts.

        Raises:
            NoEmbeddings: the model gives none.

        """
        check_embedder(inference)


class EmbeddingItem(BaseModel):
    """A vector, and the number of its text in the request."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(BaseModel):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsReply(BaseModel):
    """The reply of `POST /v1/embeddings`."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingsUsage


@router.post(
    "/v1/embeddings",
    response_model=None,
    responses={200: {"model": EmbeddingsReply}, **ERRORS},
)
async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
    """A unit vector of each text."""
    model = model_of(request)
    body.check_model(model.inference)
    check_given(body.input, "input")
    limit = min(MAX_INPUTS, service_of(request).settings.max_client_batch_size)
    if len(body.input) > limit:
        raise Unprocessable(f"input: {len(body.input)} in one request; at most {limit} are taken")
    wanted = Embedding(body.input, Options(naming="input[{}]"), body.dimensions)
    as_base64 = body.encoding_format == "base64"
    return await embed(request, wanted, form(model.name, as_base64=as_base64))


def form(model: str, *, as_base64: bool) -> ListForm:
    """OpenAI's list of the vectors of a model."""

    def item(number: int, vector: Floats) -> bytes:
        written = vector_json(vector, as_base64=as_base64)
        return b'{"object":"embedding","index":%d,"embedding":%b}' % (number, written)

    def closing(timings: Timings) -> bytes:
        usage = {"prompt_tokens": timings.tokens, "total_tokens": timings.tokens}
        return b"]," + orjson.dumps({"model": model, "usage": usage})[1:]

    return ListForm(
        b'{"object":"list","data":[',
        item,
        closing,
        ITEM_BYTES,
        BASE64_BYTES_PER_FLOAT if as_base64 else JSON_BYTES_PER_FLOAT,
    )
