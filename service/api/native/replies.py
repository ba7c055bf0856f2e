"""Schemas that native replies share, for the OpenAPI document only."""

from __future__ import annotations

from service.api.wire.replies import WARNED
from service.api.wire.schemas import Schema, named
from service.inference.tokenization.text import Tower

USAGE = named("Usage", {"inputs": int, "tokens": int})
TOKENS = {"tokens": [str], "token_ids": [int], "offsets": [[int, int]], "truncated": bool}
"""Fields of a text in every reply."""
TEXT = {
    **TOKENS,
    "segment_ids": [int],
    "grid?": ([int, int], "Of a picture: rows, columns."),
    "size?": ([int, int], "Of a picture: width and height in pixels, as it is displayed."),
    "crop?": (
        [float, float, float, float],
        "Left, top, right and bottom of the part that the model sees, in pixels.",
    ),
    "tower?": (Tower, "Tower of a model with two towers."),
}
"""Fields of `text_fields`, without targets."""


def nested(kind: type, depth: int) -> object:
    """Return the form of lists in lists, of values of a kind."""
    return [nested(kind, depth - 1)] if depth else kind


def reply(name: str, fields: dict[str, object]) -> Schema:
    """Return the schema of a reply with these fields between its names and its usage."""
    return named(name, {"model": str, "backend": str, **fields, "usage": USAGE, **WARNED})
