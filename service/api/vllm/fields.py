"""Fields, messages and errors shared by requests and replies in vLLM's format.

A model with two towers has a vector of a text or of a picture, and none of both together; vLLM's
chat template of such models is the text alone. Models of texts refuse messages, which vLLM would
write by the checkpoint's chat template.

https://docs.vllm.ai/en/latest/models/pooling_models.html
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator
from pydantic.json_schema import WithJsonSchema
from starlette.responses import Response

from service.api.drop_in.embedding import TextsOrIds
from service.api.native.texts import LenientRequest, nullable
from service.api.wire.pictures import PART_SCHEMA, content_part, wrong
from service.api.wire.problems import error_reply, problems_in_form
from service.api.wire.reply_headers import Responses, warning_field
from service.api.wire.route import ApiExchange
from service.errors import NoTaskHead, ServiceError, Unprocessable
from service.inference.encoding import PreparedTexts
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Input
from service.inference.tokenization.tokenizer import Options
from service.inference.tokenization.truncation import Direction, shorten
from service.models.served import ServedModel

_BAD_REQUEST = 400
_STATUSES = {Unprocessable.status: _BAD_REQUEST, NoTaskHead.status: _BAD_REQUEST}
"""Native status → vLLM's status, of requests that cannot be satisfied."""
_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    501: "NotImplementedError",
}


class ErrorObject(BaseModel):
    """Message, type and status of an error."""

    message: str
    type: str
    param: str | None = None
    code: int


class ErrorResponse(BaseModel):
    """Error."""

    error: ErrorObject


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error; its type is the status's phrase if vLLM has no name for it."""
    status = _STATUSES.get(error.status, error.status)
    kind = _TYPES.get(status) or HTTPStatus(status).phrase
    nested = {"message": error.detail, "type": kind, "param": None, "code": status}
    response = error_reply(error, orjson.dumps({"error": nested}), "application/json")
    response.status_code = status
    return response


ERRORS = problems_in_form(ErrorResponse, without=_STATUSES)
"""Error replies of a route, for the OpenAPI document."""


def with_vllm_errors(errors: Responses) -> Responses:
    """Return the error replies of a route that also accepts requests in vLLM's format.

    Args:
        errors: error replies of the route's other format, each with its `model`.

    """
    return {
        status: {**reply, "model": reply["model"] | ErrorResponse}
        for status, reply in errors.items()
    }


WHOLE_CONTEXT = -1
"""Value of `truncate_prompt_tokens` for the model's limit."""


class VllmRequest(LenientRequest):
    """Fields of every request."""

    truncate_prompt_tokens: int | None = Field(
        None,
        ge=WHOLE_CONTEXT,
        description="Number of tokens to which longer texts are cut, -1 for the model's limit; by "
        "default, texts beyond the model's limit are rejected.",
    )
    truncation_side: Direction | None = Field(None, description="Side to cut; right by default.")
    use_activation: bool | None = Field(
        None, description="Whether logits become probabilities and vectors unit vectors."
    )

    @property
    def direction(self) -> Direction:
        """Side to cut."""
        return self.truncation_side or "right"

    def options(self, naming: str, prompt_name: str | None = None) -> Options:
        """Return the tokenisation options that apply before `truncate_prompt_tokens`.

        Args:
            naming: format of an input's name in error messages.
            prompt_name: name of a prompt of the checkpoint.

        """
        truncate = self.truncate_prompt_tokens is not None
        return Options(truncate, self.direction, prompt_name, naming=naming)

    def check_length(self, max_tokens: int) -> None:
        """Reject a `truncate_prompt_tokens` of 0 or beyond the model's limit.

        Args:
            max_tokens: maximum tokens of a text for the model.

        """
        asked = self.truncate_prompt_tokens
        if asked is not None and (asked == 0 or asked > max_tokens):
            raise Unprocessable(
                f"truncate_prompt_tokens: {asked} is not in 1 … {max_tokens}; -1 is what fits"
            )

    async def cut(self, prepared: PreparedTexts) -> None:
        """Cut tokenised texts to `truncate_prompt_tokens`."""
        asked = self.truncate_prompt_tokens
        if asked is None or asked == WHOLE_CONTEXT:
            return
        if prepared.texts[0].picture:
            raise Unprocessable("truncate_prompt_tokens: pictures are not cut: leave it out")
        await shorten(prepared.texts, asked, self.direction)
        prepared.recount()


class Usage(BaseModel):
    """Token counts of a request, in all of OpenAI's fields."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: Literal[0] = 0
    prompt_tokens_details: None = None


def envelope(exchange: ApiExchange, kind: str, model: str, timings: Timings) -> dict[str, object]:
    """Return the fields of every reply beside its data."""
    tokens, usage = timings.tokens, {"completion_tokens": 0, "prompt_tokens_details": None}
    return {
        "id": f"{kind}-{exchange.request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, **usage},
        **warning_field(timings.warnings),
    }


_ONE = "one vector is of one text or one picture: send the others in requests of their own"


def _message(value: object) -> Input:
    """Parse a conversation of one message of a user, with one text or one picture."""
    match value:
        case [{"role": "user", "content": str(text), **others}] if not others:
            return text
        case [{"role": "user", "content": [part], **others}] if not others:
            return content_part(part, "messages[0].content[0]")
        case [{"role": "user", "content": [_, _, *_]}]:
            raise wrong(f"messages[0].content has several parts, and {_ONE}")
        case [_, _, *_]:
            raise wrong(f"messages are several, and {_ONE}")
    raise wrong('messages[0] is not {"role": "user", "content": …} with a text or a list of a part')


Message = Annotated[
    Input,
    PlainValidator(_message),
    WithJsonSchema(
        {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "role": {"const": "user"},
                    "content": {
                        "anyOf": [
                            {"type": "string"},
                            {"type": "array", "items": PART_SCHEMA, "minItems": 1, "maxItems": 1},
                        ]
                    },
                },
                "required": ["role", "content"],
                "additionalProperties": False,
            },
        }
    ),
]


def _either(schema: dict[str, Any]) -> None:
    """Allow a request without `input` in the JSON schema, which has `messages` instead."""
    schema["required"] = [name for name in schema["required"] if name != "input"]
    nullable(schema)


class MessagesRequest(VllmRequest):
    """Fields of a request with `input`, or `messages` in its place."""

    model_config = ConfigDict(json_schema_extra=_either)

    input: TextsOrIds = Field(
        description="A text, token ids of the model's own tokenizer, or a list of either."
    )
    messages: Message | None = Field(
        None,
        description="vLLM's field, in place of `input`, for models that read pictures: one message "
        "with one text or one picture.",
    )

    @model_validator(mode="before")
    @classmethod
    def _one_kind(cls, fields: object) -> object:
        if not isinstance(fields, dict) or fields.get("messages") is None:
            return fields
        if fields.get("input") is not None:
            raise wrong("messages: leave out `input`, whose place they take")
        return {**fields, "input": []}

    @property
    def given(self) -> list[Input]:
        """Inputs of the request, from `input` or `messages`."""
        return self.input if self.messages is None else [self.messages]

    def check_messages(self, model: ServedModel) -> None:
        """Check that a model with `messages` reads pictures."""
        if self.messages is not None and not any(
            tower.artifact.manifest.images for tower in model.towers
        ):
            raise Unprocessable(
                "messages: this model reads texts only, and vLLM would write messages by its chat "
                "template: send `input`"
            )
