"""`POST /v1/embeddings`: a vector of each text or picture, in OpenAI's format.

https://platform.openai.com/docs/api-reference/embeddings/create
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.cohere.quantization import VectorForm
from service.api.drop_in.embedding import (
    Embedding,
    ListForm,
    answer,
    check_given,
    prepare_embedding,
)
from service.api.drop_in.late_chunking import prepare_late_chunks
from service.api.openai.errors import ERRORS
from service.api.openai.request import EmbeddingsRequest
from service.api.wire.media import Unwritten
from service.api.wire.route import JsonRoute, fingerprint_of, model_of, service_of
from service.api.wire.text_warnings import WarnedReply, warning_field
from service.engines.contract import Floats
from service.errors import Unprocessable
from service.inference.timings import Timings
from service.inference.tokenization.cl100k import Cl100k
from service.inference.tokenization.inputs import Input, TokenIds, characters

MAX_INPUTS = 2048
"""Maximum number of inputs in one request, as at OpenAI."""
ITEM_BYTES = 64
"""Predicted bytes of an item in JSON, without its vector."""

INLINE_IDS = 512
"""Maximum number of ids that are decoded on the event loop; more are decoded in a thread."""
TokenIdsSetting = Literal["refuse", "model", "cl100k"]

router = APIRouter(route_class=JsonRoute, tags=["openai"])


class EmbeddingItem(BaseModel):
    """Vector, and the index of its text in the request."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(BaseModel):
    """Number of tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsReply(WarnedReply):
    """Reply of `POST /v1/embeddings`."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingsUsage
    system_fingerprint: str = Field(
        description="Fingerprint of the model, as in the header `x-model-fingerprint`."
    )


@router.post(
    "/v1/embeddings",
    response_model=None,
    responses={200: {"model": EmbeddingsReply}, **ERRORS},
)
async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
    """Return a vector of each text or picture, of unit length unless the request disables it."""
    model, state = model_of(request), service_of(request)
    inference = model.inference
    body.check_model(inference)
    body.check_messages(model)
    check_given(body.given, "input")
    limit = min(MAX_INPUTS, state.settings.max_client_batch_size)
    if len(body.given) > limit:
        raise Unprocessable(f"input: {len(body.given)} in one request; at most {limit} are taken")
    body.check_length(inference.limits.max_tokens)
    inputs = await read_token_ids(body.given, state.settings.token_ids, state.cl100k)
    kept = body.features(inference.vectors.kept())
    wanted = Embedding(inputs, body.tokenizing(inference), kept, body.unit)
    body.check_late_chunking()
    prepare = prepare_late_chunks if body.late_chunking else prepare_embedding
    prepared = await prepare(request, wanted)
    await body.cut(prepared.texts)
    return await answer(request, prepared, list_form(request, model.name, body.vector_form))


async def read_token_ids(
    inputs: Sequence[Input], setting: TokenIdsSetting, cl100k: Cl100k | None
) -> Sequence[Input]:
    """Return a request's inputs, with token ids handled by the setting `--token-ids`.

    Clients that count tokens in OpenAI's vocabulary send ids of this vocabulary. Ids do not
    identify their vocabulary: another tokenizer reads them as another text, without an error.

    Args:
        inputs: texts and token ids of the field `input`.
        setting: `refuse` rejects ids, `model` keeps them, `cl100k` decodes them to text.
        cl100k: decoder; None unless the setting is `cl100k`.

    """
    places = [index for index, item in enumerate(inputs) if isinstance(item, TokenIds)]
    if setting == "model" or not places:
        return inputs
    if cl100k is None:
        raise Unprocessable(
            f"input[{places[0]}]: token ids are refused, as they may be of another vocabulary than "
            "the model's. Send texts (LangChain's OpenAIEmbeddings does with "
            "check_embedding_ctx_length=False), or serve with `--token-ids model`, which takes the "
            "model's own ids, or `--token-ids cl100k`, which decodes OpenAI's"
        )

    def decoded() -> list[Input]:
        return [
            cl100k.decode(f"input[{index}]", item.ids) if isinstance(item, TokenIds) else item
            for index, item in enumerate(inputs)
        ]

    if characters(inputs) <= INLINE_IDS:
        return decoded()
    return await asyncio.to_thread(decoded)


def list_form(request: Request, model: str, vector_form: VectorForm) -> ListForm:
    """Return OpenAI's format of a list of vectors."""

    def item(number: int, vector: Floats) -> Unwritten:
        yield b'{"object":"embedding","index":%d,"embedding":' % number
        yield from vector_form.pieces(vector)
        yield b"}"

    def closing(timings: Timings) -> bytes:
        usage = {"prompt_tokens": timings.tokens, "total_tokens": timings.tokens}
        fingerprint = fingerprint_of(request)[1].decode()
        fields = {
            "model": model,
            "usage": usage,
            "system_fingerprint": fingerprint,
            **warning_field(timings.warnings),
        }
        return b"]," + orjson.dumps(fields)[1:]

    return ListForm(
        b'{"object":"list","data":[', item, closing, ITEM_BYTES, vector_form.feature_bytes
    )
