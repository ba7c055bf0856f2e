"""vLLM's `messages` in place of `input`: a conversation with one text or one picture.

A model with two towers has a vector of a text or of a picture, and none of both together; vLLM's
chat template of such models is the text alone. Models of texts refuse messages, which vLLM would
write by the checkpoint's chat template.

https://docs.vllm.ai/en/latest/models/pooling_models.html
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, PlainValidator, model_validator
from pydantic.json_schema import WithJsonSchema

from service.api.drop_in.embedding import TextsOrIds
from service.api.native.texts import nullable
from service.api.vllm.fields import VllmRequest
from service.api.wire.pictures import PART_SCHEMA, content_part, wrong
from service.errors import Unprocessable
from service.inference.tokenization.inputs import Input
from service.models.served import ServedModel

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
