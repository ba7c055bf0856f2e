"""Inputs of `POST /v1/embeddings`: texts, token ids, and Jina's objects with a text or a picture.

https://api.jina.ai/redoc
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator
from pydantic.json_schema import WithJsonSchema

from service.api.drop_in.embedding import IDS_SCHEMA, texts_or_ids
from service.api.wire.pictures import picture_or_address, wrong
from service.inference.tokenization.inputs import Input


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
