"""Fields of every native request and reply with texts.

Notation: B texts, T tokens of all texts, S tokens of one text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from service.api.wire.notices import notice_field
from service.api.wire.route import ModelRequest
from service.inference.notices import NO_NOTICES, Notices
from service.inference.tokenization.inputs import Input
from service.inference.tokenization.tokenized import TokenizedText
from service.inference.tokenization.tokenizer import Options
from service.inference.tokenization.truncation import Direction

BackendName = Literal["onnx", "torch"]
MAX_FIELDS = 64
"""Maximum number of fields of a request, as each unknown field takes time to reject."""
TOKEN_BYTES, TEXT_BYTES = 64, 256
"""Predicted bytes of a token (piece, id, offsets, segment) and of a text's names in a reply."""


def _inputs(value: Any) -> list[Input]:
    """Validate a text, a list of texts or a list of pairs, up to its first invalid item."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise PydanticCustomError("inputs", "a text, a list of texts or a list of pairs is needed")
    if not value:
        raise PydanticCustomError("inputs", "at least one text is needed")
    if isinstance(value[0], str):
        for index, text in enumerate(value):
            if not isinstance(text, str):
                raise PydanticCustomError("inputs", "inputs[{index}] is no text", {"index": index})
        return list(value)
    pairs: list[Input] = []
    for index, pair in enumerate(value):
        match pair:
            case [str(first), str(second)]:
                pairs.append((first, second))
            case _:
                raise PydanticCustomError(
                    "inputs", "inputs[{index}] is neither a text nor a pair", {"index": index}
                )
    return pairs


def no_duplicates(values: list[Any]) -> list[Any]:
    """Return a list, if no value is listed twice."""
    if len(set(values)) != len(values):
        raise PydanticCustomError("duplicate", "a value is listed twice")
    return values


_Text = {"type": "string"}
Inputs = Annotated[
    list[Input],
    PlainValidator(_inputs),
    WithJsonSchema(
        {
            "anyOf": [
                _Text,
                {"type": "array", "items": _Text, "minItems": 1},
                {
                    "type": "array",
                    "items": {"type": "array", "items": _Text, "minItems": 2, "maxItems": 2},
                    "minItems": 1,
                },
            ],
            "title": "Inputs",
            "examples": ["The animal didn't cross the street because it was too tired"],
        }
    ),
]


_SHOWN = ("title", "description", "default", "examples")


def _nullable(schema: dict[str, Any]) -> None:
    """Allow null in every optional field of a request's JSON schema."""
    for name, field in schema.get("properties", {}).items():
        if name in schema.get("required", ()) or {"type": "null"} in field.get("anyOf", ()):
            continue
        kinds = {key: field.pop(key) for key in [*field] if key not in _SHOWN}
        field["anyOf"] = [*kinds.pop("anyOf", ()), *([kinds] if kinds else []), {"type": "null"}]


class BoundedRequest(BaseModel):
    """Request with a bounded number of fields, in which null means an absent field."""

    model_config = ConfigDict(json_schema_extra=_nullable)

    @model_validator(mode="before")
    @classmethod
    def _given_fields(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        if len(fields) > MAX_FIELDS:
            raise PydanticCustomError("fields", "there are too many fields")
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {
            name: value
            for name, value in fields.items()
            if value is not None or name not in optional
        }


class StrictRequest(BoundedRequest):
    """Request without type conversion that rejects unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class LenientRequest(ModelRequest, BoundedRequest):
    """Request without type conversion that ignores unknown fields, as other services do."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class TextRequest(ModelRequest, StrictRequest):
    """Fields of every request with texts."""

    inputs: Inputs = Field(description="One text, many texts, or sentence pairs.")
    truncate: bool = Field(False, description="Truncate long texts instead of rejecting them.")
    truncation_direction: Direction = Field("right", description="Side to cut.")
    prompt_name: str | None = Field(
        None,
        description="Name of a prompt in the checkpoint's configuration; an empty name disables "
        "the default prompt.",
    )
    backend: BackendName | None = Field(
        None, description="Engine that computes the reply; there is no fallback."
    )

    @property
    def options(self) -> Options:
        """Tokenisation options of the texts."""
        return Options(self.truncate, self.truncation_direction, self.prompt_name)


@dataclass(frozen=True)
class Header:
    """Fields of a reply before its results."""

    model: str
    backend: str
    fields: Mapping[str, list[int]]
    """Further fields: `layers` of /encode, `layers` and `heads` of /attention."""
    notices: Notices = NO_NOTICES

    @property
    def names(self) -> dict[str, Any]:
        """JSON fields before the results."""
        names = {"model": self.model, "backend": self.backend, **self.fields}
        return names | notice_field(self.notices)


def usage(texts: Sequence[TokenizedText]) -> dict[str, int]:
    """Return the number of inputs and tokens of a request."""
    return {"inputs": len(texts), "tokens": sum(len(text.input_ids) for text in texts)}


def text_fields(text: TokenizedText) -> dict[str, Any]:
    """Return the fields of a text in a JSON reply."""
    return {
        "tokens": text.tokens,
        "token_ids": text.input_ids,
        "offsets": text.offsets,
        "segment_ids": text.segment_ids,
        "truncated": text.truncated,
    }


def text_bytes(texts: Sequence[TokenizedText]) -> int:
    """Return the predicted bytes of all texts' fields (`text_fields`) in a reply."""
    return TOKEN_BYTES * sum(len(text.input_ids) for text in texts) + TEXT_BYTES * len(texts)


def text_tensors(texts: Sequence[TokenizedText]) -> dict[str, NDArray[Any]]:
    """Return the tensors of all texts in a binary reply."""
    lengths = [len(text.input_ids) for text in texts]
    return {
        "cu_seqlens": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        "token_ids": np.concatenate([text.input_ids for text in texts]).astype(np.int32),
        "segment_ids": np.concatenate([text.segment_ids for text in texts]).astype(np.int32),
        "truncated": np.array([text.truncated for text in texts], np.uint8),
    }


def metadata(header: Header, texts: Sequence[TokenizedText]) -> dict[str, str]:
    """Return the `__metadata__` of a binary reply, with lists as JSON."""
    lists = dict(header.fields) | {
        "tokens": [text.tokens for text in texts],
        "offsets": [text.offsets for text in texts],
        "usage": usage(texts),
        **notice_field(header.notices),
    }
    encoded = {name: orjson.dumps(value).decode() for name, value in lists.items()}
    return encoded | {"model": header.model, "backend": header.backend}
