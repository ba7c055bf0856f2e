"""Inputs of a request: texts, pairs of texts, and pictures."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from service.api.wire.pictures import FIRST_FRAME, ONE_FIELD, element
from service.inference.tokenization.inputs import Input, Picture


def _texts(value: object) -> list[Input]:
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


def _elements(value: object) -> list[Input]:
    """Validate inputs that may be objects with a text or a picture, up to the first invalid item.

    A list without such objects is either of texts or of pairs.
    """
    if isinstance(value, str):
        return [value]
    values = [value] if isinstance(value, dict | Picture) else value
    if not isinstance(values, list):
        return _texts(value)
    kinds = {*map(type, values)}
    if kinds == {str}:
        return [*values]
    if not any(issubclass(kind, dict | Picture) for kind in kinds):
        return _texts(value)
    inputs: list[Input] = []
    for index, item in enumerate(values):
        match item:
            case str() | Picture():
                inputs.append(item)
            case [str(first), str(second)]:
                inputs.append((first, second))
            case dict():
                inputs.append(element(item, f"inputs[{index}]"))
            case _:
                raise PydanticCustomError(
                    "inputs",
                    "inputs[{index}] is neither a text, a pair nor a picture: " + ONE_FIELD,
                    {"index": index},
                )
    return inputs


TEXT: dict[str, Any] = {"type": "string"}
"""JSON schema of a text."""
_PAIR: dict[str, Any] = {"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2}
_FORMS = [
    TEXT,
    {"type": "array", "items": TEXT, "minItems": 1},
    {"type": "array", "items": _PAIR, "minItems": 1},
]
_ANIMATED = {
    "type": "boolean",
    "default": False,
    "description": "Take the first frame of an animated file, which is refused otherwise.",
}
OBJECTS = [
    {
        "type": "object",
        "properties": {name: {"type": "string", "description": description}, **more},
        "required": [name],
        "additionalProperties": False,
    }
    for name, description, more in (
        ("text", "A text.", {}),
        ("image", "A picture's file in base64, or as a data URL.", {FIRST_FRAME: _ANIMATED}),
        (
            "image_url",
            "A data URL of a picture, or its address if `--image-hosts` lists the host.",
            {FIRST_FRAME: _ANIMATED},
        ),
    )
]
"""JSON schemas of an object with a text or a picture."""
_EXAMPLE = "The animal didn't cross the street because it was too tired"
_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC"
)
"""PNG with a red pixel, in base64."""
Inputs = Annotated[
    list[Input],
    PlainValidator(_elements),
    WithJsonSchema(
        {
            "anyOf": [
                *_FORMS,
                *OBJECTS,
                {
                    "type": "array",
                    "items": {"anyOf": [TEXT, _PAIR, *OBJECTS]},
                    "minItems": 1,
                },
            ],
            "title": "Inputs",
            "examples": [_EXAMPLE, [{"text": "a red square"}, {"image": _PIXEL}]],
        }
    ),
]
