"""Replies that a client may keep: it asks by `if-none-match` whether they are still the same."""

from __future__ import annotations

from starlette.requests import Request


def is_known(request: Request, etag: str) -> bool:
    """Whether the client has what an entity tag stands for (RFC 9110, section 13.1.2)."""
    known = request.headers.get("if-none-match", "")
    return etag in {tag.strip().removeprefix("W/") for tag in known.split(",")}
