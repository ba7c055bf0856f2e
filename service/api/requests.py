"""Bases of the schemas of requests, and lists in them.

Validators of large lists stop at the first invalid item: an error for each would take longer than
the request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, model_validator

from service.api.wire.pictures import wrong
from service.api.wire.route import ModelRequest

MAX_FIELDS = 64
"""Maximum number of fields of a request, as each unknown field takes time to reject."""


def list_of(item: Callable[[object, int], Any], wanted: str) -> PlainValidator:
    """Return the validator of a list with at least one item, up to its first invalid item.

    `item` parses an item with its index, or raises `wrong`; `wanted` is the error of other values.
    """

    def parse(value: object) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise wrong(wanted)
        return [item(each, index) for index, each in enumerate(value)]

    return PlainValidator(parse)


def distinct(values: list[Any]) -> list[Any]:
    """Return a list, if no value is listed twice."""
    if len(set(values)) != len(values):
        raise wrong("a value is listed twice")
    return values


Value = TypeVar("Value")
Distinct = Annotated[list[Value], Field(min_length=1), AfterValidator(distinct)]
"""List of at least one value, none of which is listed twice."""


_SHOWN = ("title", "description", "default", "examples")


def nullable(schema: dict[str, Any]) -> None:
    """Allow null in every optional field of a request's JSON schema."""
    for name, field in schema.get("properties", {}).items():
        if name in schema.get("required", ()) or {"type": "null"} in field.get("anyOf", ()):
            continue
        kinds = {key: field.pop(key) for key in [*field] if key not in _SHOWN}
        field["anyOf"] = [*kinds.pop("anyOf", ()), *([kinds] if kinds else []), {"type": "null"}]


class BoundedRequest(BaseModel):
    """Request with a bounded number of fields, in which null means an absent field."""

    model_config = ConfigDict(json_schema_extra=nullable)

    @model_validator(mode="before")
    @classmethod
    def _given_fields(cls, fields: object) -> object:
        if not isinstance(fields, dict):
            return fields
        if len(fields) > MAX_FIELDS:
            raise wrong("there are too many fields")
        if None not in fields.values():
            return fields
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
