"""Routes in OpenAI's formats: /v1/embeddings and /v1/models.

https://platform.openai.com/docs/api-reference/embeddings/create

The clients of OpenAI, Jina (https://api.jina.ai/redoc) and vLLM call `/v1/embeddings`. Fields that
change vectors are honoured or rejected; `service.api.wire.bodies` lists the rejected fields.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field, PlainValidator
from pydantic.json_schema import WithJsonSchema
from starlette.responses import JSONResponse, Response

from model.numerics.pooling import modes_of
from model.numerics.quantization import FEATURES_PER_BYTE
from service.api.drop_in.embedding import (
    BAD_REQUEST,
    CREATED,
    EMBEDDING_ITEM,
    EXAMPLES,
    IDS_SCHEMA,
    NESTED_ERROR,
    USAGE,
    EmbeddingType,
    ListForm,
    PreparedEmbedding,
    check_embedder,
    json_error,
    listed_models,
    prepare_embedding,
    prompt_for,
    texts_or_ids,
    usage,
)
from service.api.messages import MessagesRequest
from service.api.wire.media import MODEL_PARAMETER
from service.api.wire.pictures import closed_object, picture, wrong
from service.api.wire.replies import WARNED, problems_in_form, replies, warning_field
from service.api.wire.route import ApiExchange, JsonRoute
from service.api.wire.schemas import any_of, named, schema
from service.errors import (
    NoEmbeddings,
    Overloaded,
    ServiceError,
    Unauthorized,
    UnknownModel,
    Unprocessable,
)
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions
from service.inference.outputs.declared import names_of
from service.inference.outputs.spans import spans_of
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Cl100k, Input, Picture, TokenIds, characters
from service.inference.tokenization.text import Offset
from service.inference.tokenization.tokenizer import Options
from service.models.served import Modality, ServedModel

CODES: dict[int, str] = {
    Unauthorized.status: "invalid_api_key",
    UnknownModel.status: "model_not_found",
    Overloaded.status: "rate_limit_exceeded",
}
"""Status → OpenAI's error code; other errors use their own name."""
_PARAM = re.compile(r"(?!body)([a-z_]+)(?=[:.[])")
"""Pattern of the field's name at the start of an error message."""


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error."""
    named = _PARAM.match(error.detail)
    body = {
        "message": error.detail,
        "type": "invalid_request_error" if error.status < 500 else "server_error",
        "param": "model" if isinstance(error, UnknownModel) else named and named[1],
        "code": CODES.get(error.status, error.slug.replace("-", "_")),
    }
    return json_error(error, {"error": body}, {Unprocessable.status: BAD_REQUEST})


ERRORS = problems_in_form(NESTED_ERROR, {Unprocessable.status: BAD_REQUEST})
ERRORS |= {
    NoEmbeddings.status: ERRORS[404] | {"description": "The model does not embed texts"},
    "default": ERRORS[500] | {"description": "Any other error"},
}
"""Error replies of a route, for the OpenAPI document."""


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
            return picture(image, f"{field}.image", addresses=True)
    raise wrong(
        f"{field} is not an object with one of `text` and `image`, each of which has a vector"
    )


_FORMS = [
    *(str, IDS_SCHEMA),
    closed_object(text=(str, "A text.")),
    closed_object(image=(str, "A picture: base64, a data URL, or an address.")),
]
EmbeddingInputs = Annotated[
    list[Input],
    PlainValidator(_inputs),
    WithJsonSchema(schema(any_of(*_FORMS, [any_of(*_FORMS)]), examples=EXAMPLES)),
]
"""Inputs of a request: texts, token ids, pictures, and a possibly empty list of them."""


class EmbeddingsRequest(MessagesRequest):
    """Request body of `POST /v1/embeddings`."""

    needs = check_embedder

    input: EmbeddingInputs = Field(
        description="A text, token ids as `--token-ids` allows, a picture as Jina writes it, or a "
        "list of them."
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64 = little-endian float32, one string for each vector."
    )
    dimensions: int | None = Field(
        None, description="Keep the first n, then normalise; all by default."
    )
    user: str | None = Field(None, description="Ignored.")
    task: str | None = Field(
        None, description="Jina's field: selects a prompt of the checkpoint, if it has prompts."
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

    @property
    def vector_type(self) -> EmbeddingType:
        """Type of each vector."""
        kind, as_base64 = self.embedding_type, self.encoding_format == "base64"
        if kind in ("binary", "ubinary"):
            if as_base64:
                raise Unprocessable(f"embedding_type: {kind} is not given in base64: leave out one")
            return kind
        return "base64" if as_base64 or kind == "base64" else "float"

    def tokenizing(self, inference: Inference) -> Options:
        """Return the tokenisation options."""
        options = self.options("input[{}]", prompt_for(inference, self.task, "task"))
        return replace(options, truncate=options.truncate or self.truncate)

    def features(self, size: int) -> int | None:
        """Return the number of leading features to keep; None for the checkpoint's own number."""
        kept, in_bits = self.dimensions, self.embedding_type in ("binary", "ubinary")
        if in_bits and (size if kept is None else kept) % FEATURES_PER_BYTE:
            raise Unprocessable("dimensions: binary vectors need a multiple of 8")
        return kept


MAX_INPUTS = 2048
"""Maximum number of inputs in one request, as at OpenAI."""
INLINE_IDS = 512
"""Maximum number of ids that are decoded on the event loop; more are decoded in a thread."""
TokenIdsSetting = Literal["refuse", "model", "cl100k"]

router = APIRouter(route_class=JsonRoute, tags=["openai"])


_FINGERPRINT = "Fingerprint of the model, as in the header `x-model-fingerprint`."
EMBEDDINGS_REPLY = named(
    "EmbeddingsReply",
    {
        "object": "list",
        "data": [EMBEDDING_ITEM],
        "model": str,
        "usage": USAGE,
        "system_fingerprint": (str, _FINGERPRINT),
        **WARNED,
    },
)


@router.post("/v1/embeddings", responses=replies(EMBEDDINGS_REPLY, ERRORS))
async def embeddings(body: EmbeddingsRequest, exchange: ApiExchange) -> Response:
    """Return a vector of each text or picture, of unit length unless the request disables it."""
    model, state = exchange.model, exchange.service
    inference = model.inference
    body.check_model(inference)
    body.check_inputs(model)
    limit = min(MAX_INPUTS, state.settings.max_client_batch_size)
    if len(body.given) > limit:
        raise Unprocessable(f"input: {len(body.given)} in one request; at most {limit} are taken")
    body.check_length(inference.limits.max_tokens)
    inputs = await read_token_ids(body.given, state.settings.token_ids, state.cl100k)
    kept = body.features(inference.vectors.kept())
    unit = body.normalized and body.use_activation is not False
    reading = body.tokenizing(inference)
    wanted = EncodeOptions(("pooled",), dimensions=kept, normalize=unit)
    if body.late_chunking and body.truncate_prompt_tokens is not None:
        raise Unprocessable("late_chunking: leave out `truncate_prompt_tokens`, vLLM's field")
    prepare = prepare_late_chunks if body.late_chunking else prepare_embedding
    prepared = await prepare(exchange, inputs, reading, wanted)

    def closing(timings: Timings) -> Mapping[str, object]:
        return {
            "model": model.name,
            "usage": usage(timings),
            "system_fingerprint": exchange.fingerprint[1].decode(),
            **warning_field(timings.warnings),
        }

    form = ListForm(
        b'{"object":"list","data":[',
        b'{"object":"embedding","index":%d,"embedding":',
        b"}",
        closing,
        body.vector_type,
    )
    return await prepared.answer(exchange, form)


async def read_token_ids(
    inputs: Sequence[Input], setting: TokenIdsSetting, cl100k: Cl100k | None
) -> Sequence[Input]:
    """Return a request's inputs, with token ids handled by the setting `--token-ids`.

    Clients that count tokens in OpenAI's vocabulary send ids of this vocabulary. Ids do not
    identify their vocabulary: another tokenizer reads them as another text, without an error.
    The setting `refuse` rejects ids, `model` keeps them, and `cl100k` decodes them to text.
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


JOINED = "the joined input"
"""Name of the text of all inputs in error messages."""


async def prepare_late_chunks(
    exchange: ApiExchange, inputs: Sequence[Input], reading: Options, wanted: EncodeOptions
) -> PreparedEmbedding:
    """Tokenise all inputs of a request as one text, of which each input is a span."""
    if "cls" in modes_of(exchange.model.inference.sentence.pooling):
        raise Unprocessable(
            "late_chunking: the model pools the first token, which is in no input: leave it out, "
            "or ask POST /encode for `spans` with `pooling` mean"
        )
    text, spans = joined(inputs)
    prepared = await prepare_embedding(exchange, [text], replace(reading, naming=JOINED), wanted)
    ((tower, _),), (own,) = prepared.towers, prepared.texts
    try:
        (own.texts[0].spans,) = await asyncio.to_thread(spans_of, [text], [spans], own.texts)
    except Unprocessable as error:
        message = str(error).replace("spans[0]", "input").replace("inputs[0]", JOINED)
        raise Unprocessable(f"late_chunking: {message}") from None
    return replace(prepared, plans=[tower.inference.plan(replace(wanted, outputs=("spans",)))])


def joined(inputs: Sequence[Input]) -> tuple[str, list[Offset]]:
    """Return the text of all inputs, and the start and end of each in it."""
    parts: list[str] = []
    spans: list[Offset] = []
    end = 0
    for index, given in enumerate(inputs):
        if isinstance(given, Picture):
            raise Unprocessable(f"late_chunking: input[{index}] is a picture: leave it out")
        if not isinstance(given, str):
            raise Unprocessable(
                f"late_chunking: input[{index}] is no text: send the texts of token ids"
            )
        if parts and given and not (parts[-1][-1:].isspace() or given[0].isspace()):
            parts.append(" ")
            end += 1
        parts.append(given)
        spans.append((end, end + len(given)))
        end += len(given)
    return "".join(parts), spans


models_router = APIRouter(tags=["openai"])


MODEL = named(
    "OpenAIModel",
    {
        "id": str,
        "object": "model",
        "created": (int, CREATED),
        "owned_by": str,
        "outputs?": ([str], "`outputs` of /encode that the model has; null until it is loaded."),
        "modalities?": ([Modality], "Kinds of its inputs; null until it is loaded."),
    },
)


@models_router.get("/v1/models", responses=replies({"object": "list", "data": [MODEL]}, {}))
async def models(exchange: ApiExchange) -> JSONResponse:
    """List the loaded models, the default first, their aliases, and models loaded on demand."""
    data = [_described(*item) for item in await listed_models(exchange)]
    return JSONResponse({"object": "list", "data": data})


@models_router.get(f"/v1/models/{MODEL_PARAMETER}", responses=replies(MODEL, {404: ERRORS[404]}))
async def model(model: str, exchange: ApiExchange) -> JSONResponse:
    """Return a model by its name or alias, which may contain slashes."""
    for item in await listed_models(exchange):
        if item[0] == model:
            return JSONResponse(_described(*item))
    raise UnknownModel("unknown model; GET /v1/models lists the served models")


def _described(name: str, model: ServedModel | None, created: int) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "headscope",
        "outputs": names_of(model.artifact.manifest) if model else None,
        "modalities": model.modalities if model else None,
    }


ROUTERS = (router, models_router)
