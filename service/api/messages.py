"""Fields of vLLM's requests, which its clients send to OpenAI's route, too."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, PlainValidator, model_validator
from pydantic.json_schema import WithJsonSchema

from service.api.drop_in.embedding import TextsOrIds, check_cut, check_given
from service.api.requests import LenientRequest, nullable
from service.api.wire.pictures import ONE_PART, closed_object, content_part, wrong
from service.api.wire.schemas import any_of, schema
from service.errors import Unprocessable
from service.inference.tokenization.inputs import Input
from service.inference.tokenization.tokenizer import Options
from service.inference.tokenization.truncation import Direction
from service.models.served import ServedModel

WHOLE_CONTEXT = -1
"""Value of `truncate_prompt_tokens` for the model's limit."""


class TruncatingRequest(LenientRequest):
    """Fields of truncation and activation."""

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

    def options(self, naming: str, prompt_name: str | None = None) -> Options:
        """Return the tokenisation options of inputs with `naming` in error messages."""
        asked, side = self.truncate_prompt_tokens, self.truncation_side or "right"
        most = None if asked == WHOLE_CONTEXT else asked
        return Options(
            asked is not None, side, prompt_name, max_tokens=most, naming=naming, ids_as_given=True
        )

    def check_length(self, max_tokens: int) -> None:
        """Reject a `truncate_prompt_tokens` of 0 or beyond the model's limit."""
        asked = self.truncate_prompt_tokens
        if asked is not None and (asked == 0 or asked > max_tokens):
            raise Unprocessable(
                f"truncate_prompt_tokens: {asked} is not in 1 … {max_tokens}; -1 is what fits"
            )


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
        schema([closed_object(role="user", content=any_of(str, ONE_PART)), ...], maxItems=1)
    ),
]


def _either(schema: dict[str, Any]) -> None:
    """Allow a request without `input` in the JSON schema, which has `messages` instead."""
    schema["required"] = [name for name in schema["required"] if name != "input"]
    nullable(schema)


class MessagesRequest(TruncatingRequest):
    """Fields of a request with `input`, or `messages` in its place.

    A model with two towers has a vector of a text or of a picture, and none of both together;
    vLLM's chat template of such models is the text alone. Models of texts refuse messages, which
    vLLM would write by the checkpoint's chat template.
    https://docs.vllm.ai/en/latest/models/pooling_models.html
    """

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

    def check_inputs(self, model: ServedModel) -> None:
        """Check the inputs: not empty, in `messages` only for pictures, and cut only if texts."""
        check_given(self.given, "input")
        if self.truncate_prompt_tokens != WHOLE_CONTEXT:
            check_cut(self.given, self.truncate_prompt_tokens, "truncate_prompt_tokens")
        if self.messages is not None and not any(
            tower.artifact.manifest.images for tower in model.towers
        ):
            raise Unprocessable(
                "messages: this model reads texts only, and vLLM would write messages by its chat "
                "template: send `input`"
            )
