"""JSON schemas for the OpenAPI document, written as Python values.

`str` is a text, `[str]` a list of texts, `[str, ...]` at least one text, `[int, int]` a list of
exactly two integers, `"list"` this text alone, `{"id": int}` an object, and `(int, "Seconds.")` an
integer with a description. A member `id?` may be null or absent.
"""

from __future__ import annotations

import functools
from types import EllipsisType
from typing import Any

from pydantic import BaseModel, TypeAdapter

from service.api.wire.media import JSON


class Schema(dict[str, Any]):
    """JSON schema, in contrast to a form of which one is made."""


NAMED: dict[str, Schema] = {}
"""Schemas of replies that the document lists by name."""
BODIES: list[type[BaseModel]] = []
"""Models of bodies that routes read themselves, whose schemas the document alone needs."""
_REFERENCE = "#/components/schemas/{model}"


def named(name: str, form: object) -> Schema:
    """Return a reference to the schema of a form, which the document lists by name."""
    if name in NAMED:
        raise ValueError(f"two schemas are named {name}")
    NAMED[name] = Schema({"title": name, **schema(form)})
    return Schema({"$ref": _REFERENCE.format(model=name)})


def documented_body(model: type[BaseModel], **others: object) -> dict[str, Any]:
    """Return the OpenAPI document of a JSON body that a route reads itself; also in `others`."""
    BODIES.append(model)
    content = {JSON: {"schema": {"$ref": _REFERENCE.format(model=model.__name__)}}, **others}
    return {"requestBody": {"content": content}}


def all_named() -> dict[str, Any]:
    """Return all named schemas, also of the models of `documented_body`."""
    found = dict[str, Any](NAMED)
    for model in BODIES:
        built = model.model_json_schema(ref_template=_REFERENCE)
        found |= built.pop("$defs", {})
        found[model.__name__] = built
    return found


def schema(form: object, **more: object) -> Schema:
    """Return the JSON schema of a form, see the module, with more keywords of JSON Schema."""
    made: dict[str, Any]
    match form:
        case Schema():
            made = form
        case tuple((described, about)):
            made = {**schema(described), "description": about}
        case str():
            made = {"type": "string", "const": form}
        case [items]:
            made = {"type": "array", "items": schema(items)}
        case [items, EllipsisType()]:
            made = {"type": "array", "items": schema(items), "minItems": 1}
        case [first, *others]:
            bounds = {"minItems": len(form), "maxItems": len(form)}
            alike = all(own == first for own in others)
            items = {"items": schema(first)} if alike else {"prefixItems": [*map(schema, form)]}
            made = {"type": "array", **items, **bounds}
        case dict():
            made = _object(form)
        case _:
            made = _of_type(form)
    return Schema({**made, **more})


@functools.cache
def _of_type(kind: Any) -> dict[str, Any]:
    return TypeAdapter(kind).json_schema()


def any_of(*forms: object) -> Schema:
    """Return the schema of a value in one of some forms."""
    return Schema({"anyOf": [schema(form) for form in forms]})


def _object(members: dict[str, object]) -> dict[str, Any]:
    properties: dict[str, Schema] = {}
    for name, form in members.items():
        described, *about = form if isinstance(form, tuple) else (form,)
        own = schema(described)
        if name.endswith("?"):
            own = Schema({"anyOf": [*own.get("anyOf", [own]), {"type": "null"}]})
        properties[name.removesuffix("?")] = schema((own, *about)) if about else own
    required = [name for name in members if not name.endswith("?")]
    return {"type": "object", "properties": properties, "required": required}
