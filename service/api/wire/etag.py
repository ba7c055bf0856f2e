"""Conditional requests: a client revalidates its copy of a reply by `if-none-match`."""

from __future__ import annotations

from starlette.requests import Request


def is_known(request: Request, etag: str) -> bool:
    """Return whether the client's copy has this entity tag (RFC 9110, section 13.1.2)."""
    known = request.headers.get("if-none-match", "")
    return etag in {tag.strip().removeprefix("W/") for tag in known.split(",")}
