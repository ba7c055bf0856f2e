"""`GET /`: the dashboard, a page of static files that talks to this API and to no other host."""

from __future__ import annotations

import functools
import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from service.api.wire.accept import prefers
from service.api.wire.etag import is_known

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class StaticFile:
    """One file of the page, in memory."""

    content: bytes
    media_type: str
    etag: str

    @functools.cached_property
    def zipped(self) -> StaticFile:
        """The same in gzip, made once; its bytes are others, and so is its tag."""
        content = gzip.compress(self.content, mtime=0)
        return StaticFile(content, self.media_type, f'{self.etag[:-1]}-gzip"')


def _entries(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    """Every file of a folder, by its path in it."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _entries(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", entry


def _read_files() -> Mapping[str, StaticFile]:
    files = {}
    for name, entry in _entries(resources.files("service.dashboard")):
        suffix = "." + name.rpartition(".")[2]
        if suffix in MEDIA_TYPES:
            content = entry.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            files[name] = StaticFile(content, MEDIA_TYPES[suffix], etag)
    return files


FILES = _read_files()
"""What can be asked for, by name; nothing else is ever looked up."""


@router.get("/", response_class=Response)
async def index(request: Request) -> Response:
    """The dashboard."""
    return _respond(FILES["index.html"], request)


@router.get("/dashboard/{file:path}", response_class=Response)
async def static_file(file: str, request: Request) -> Response:
    """A file of the dashboard."""
    if file not in FILES:
        raise HTTPException(404)
    return _respond(FILES[file], request)


def _respond(file: StaticFile, request: Request) -> Response:
    """The file, or 304 when the browser has it; it asks each time, so an update is seen at once."""
    headers = {**SECURITY_HEADERS, "cache-control": "no-cache", "vary": "accept-encoding"}
    encodings = ",".join(request.headers.getlist("accept-encoding"))
    if prefers(encodings, "gzip", "identity"):
        file = file.zipped
        headers["content-encoding"] = "gzip"
    headers["etag"] = file.etag
    if is_known(request, file.etag):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
