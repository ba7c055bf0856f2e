"""`POST /v1/embeddings`: a vector of each text or picture, in OpenAI's format.

https://platform.openai.com/docs/api-reference/embeddings/create

The clients of OpenAI, Jina (https://api.jina.ai/redoc) and vLLM call this path. Fields that change
vectors are honoured or rejected; `service.api.wire.bodies` lists the rejected fields.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter
from pydantic import BaseModel, Field, PlainValidator
from pydantic.json_schema import WithJsonSchema
from starlette.responses import Response

from model.numerics.quantization import FEATURES_PER_BYTE
from service.api.cohere.replies import FORMS, VectorForm
from service.api.drop_in.embedding import (
    IDS_SCHEMA,
    Embedding,
    ListForm,
    answer,
    check_embedder,
    check_given,
    prepare_embedding,
    prepare_late_chunks,
    texts_or_ids,
)
from service.api.drop_in.prompts import prompt_for
from service.api.openai.models import ERRORS
from service.api.vllm.fields import MessagesRequest
from service.api.wire.media import Unwritten
from service.api.wire.pictures import picture_or_address, wrong
from service.api.wire.reply_headers import WarnedReply, warning_field
from service.api.wire.route import ApiExchange, JsonRoute
from service.engines.contract import Floats
from service.errors import Unprocessable
from service.inference.core import Inference
from service.inference.timings import Timings
from service.inference.tokenization.cl100k import Cl100k
from service.inference.tokenization.inputs import Input, TokenIds, characters
from service.inference.tokenization.tokenizer import Options


def _inputs(value: object) -> list[Input]:
    """Parse texts and token ids as `texts_or_ids` does, and objects among them."""
    items = [value] if isinstance(value, dict) else value
    if not isinstance(items, list) or not any(isinstance(item, dict) for item in items):
        return texts_or_ids(value)
    inputs: list[Input] = []
    for index, item in enumerate(items):
        if isinstance(item, dict):
            inputs.append(_object(item, f"input[{index}]"))
        else:
            inputs += texts_or_ids([item])
    return inputs


def _object(value: dict[str, object], field: str) -> Input:
    match value:
        case {"text": str(text), **others} if not others:
            return text
        case {"image": image, **others} if not others:
            return picture_or_address(image, f"{field}.image")
    raise wrong(
        f"{field} is not an object with one of `text` and `image`, each of which has a vector"
    )


_TEXT: dict[str, Any] = {"type": "string"}
_OBJECTS = [
    {
        "type": "object",
        "properties": {name: {"type": "string", "description": description}},
        "required": [name],
        "additionalProperties": False,
    }
    for name, description in (
        ("text", "A text."),
        ("image", "A picture: base64, a data URL, or an address."),
    )
]
EmbeddingInputs = Annotated[
    list[Input],
    PlainValidator(_inputs),
    WithJsonSchema(
        {
            "anyOf": [
                _TEXT,
                IDS_SCHEMA,
                *_OBJECTS,
                {"type": "array", "items": {"anyOf": [_TEXT, IDS_SCHEMA, *_OBJECTS]}},
            ],
            "examples": ["What is Deep Learning?"],
        }
    ),
]
"""Inputs of a request: texts, token ids, pictures, and a possibly empty list of them."""


class EmbeddingsRequest(MessagesRequest):
    """Request body of `POST /v1/embeddings`."""

    input: EmbeddingInputs = Field(
        description="A text, token ids as `--token-ids` allows, a picture as Jina writes it, or a "
        "list of them.",
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64 = little-endian float32, one string for each vector."
    )
    dimensions: int | None = Field(
        None, description="Keep the first n, then normalise; all by default."
    )
    user: str | None = Field(None, description="Ignored.")
    task: str | None = Field(
        None,
        description="Jina's field: selects a prompt of the checkpoint, if it has prompts.",
    )
    embedding_type: Literal["float", "base64", "binary", "ubinary"] | None = Field(
        None, description="Jina's field: type of the numbers, in place of `encoding_format`."
    )
    normalized: bool = Field(True, description="Jina's field: return unit vectors.")
    truncate: bool = Field(False, description="Jina's field: truncate long texts.")
    late_chunking: bool = Field(
        False,
        description="Jina's field: encode all inputs as one text, and pool the tokens of each.",
    )

    def check_model(self, inference: Inference) -> None:
        """Check that the model embeds texts."""
        check_embedder(inference)

    def check_late_chunking(self) -> None:
        """Check that no field cuts the text of all inputs after its spans are found."""
        if self.late_chunking and self.truncate_prompt_tokens is not None:
            raise Unprocessable("late_chunking: leave out `truncate_prompt_tokens`, vLLM's field")

    @property
    def unit(self) -> bool:
        """Whether to return unit vectors."""
        return self.normalized and self.use_activation is not False

    @property
    def vector_form(self) -> VectorForm:
        """Conversion and serialisation of each vector."""
        kind, as_base64 = self.embedding_type, self.encoding_format == "base64"
        if kind in ("binary", "ubinary"):
            if as_base64:
                raise Unprocessable(f"embedding_type: {kind} is not given in base64: leave out one")
            return FORMS[kind]
        return FORMS["base64" if as_base64 or kind == "base64" else "float"]

    def tokenizing(self, inference: Inference) -> Options:
        """Return the tokenisation options that apply before `truncate_prompt_tokens`."""
        options = self.options("input[{}]", prompt_for(inference, self.task, "task"))
        truncate = options.truncate or self.truncate
        return replace(options, truncate=truncate, ids_as_given=True)

    def features(self, size: int) -> int | None:
        """Return the number of leading features to keep; None for the checkpoint's own number."""
        kept, in_bits = self.dimensions, self.embedding_type in ("binary", "ubinary")
        if in_bits and (size if kept is None else kept) % FEATURES_PER_BYTE:
            raise Unprocessable("dimensions: binary vectors need a multiple of 8")
        return kept


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
async def embeddings(body: EmbeddingsRequest, exchange: ApiExchange) -> Response:
    """Return a vector of each text or picture, of unit length unless the request disables it."""
    model, state = exchange.model, exchange.service
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
    prepared = await prepare(exchange, wanted)
    await body.cut(prepared.texts)
    return await answer(exchange, prepared, list_form(exchange, model.name, body.vector_form))


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


def list_form(exchange: ApiExchange, model: str, vector_form: VectorForm) -> ListForm:
    """Return OpenAI's format of a list of vectors."""

    def item(number: int, vector: Floats) -> Unwritten:
        yield b'{"object":"embedding","index":%d,"embedding":' % number
        yield from vector_form.pieces(vector)
        yield b"}"

    def closing(timings: Timings) -> bytes:
        usage = {"prompt_tokens": timings.tokens, "total_tokens": timings.tokens}
        fingerprint = exchange.fingerprint[1].decode()
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
