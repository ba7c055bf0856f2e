"""Replies beside the schemas of the OpenAPI document."""

from __future__ import annotations

from typing import Any

import jsonschema_rs

from service.api.wire.schemas import NAMED


def check_documented(name: str, reply: object) -> None:
    """Check that a reply is as its schema says, without a field that is not documented."""
    reference = {"$ref": f"#/components/schemas/{name}"}
    jsonschema_rs.validate(reference | {"components": {"schemas": _closed(NAMED)}}, reply)


def _closed(schema: Any) -> Any:
    """Return schemas whose objects have no other properties than the listed ones."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(item) for name, item in schema.items()}
    if isinstance(closed.get("required"), list):
        closed["additionalProperties"] = False
    return closed
