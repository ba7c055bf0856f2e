"""`GET /`: the dashboard, a page of static files that calls this API and no other host."""

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
    """Dashboard file in memory."""

    content: bytes
    media_type: str
    etag: str

    @functools.cached_property
    def zipped(self) -> StaticFile:
        """File compressed with gzip, with an ETag of its own; computed once."""
        content = gzip.compress(self.content, mtime=0)
        return StaticFile(content, self.media_type, f'{self.etag[:-1]}-gzip"')


def _entries(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    """Yield the relative path and entry of every file in a folder, recursively."""
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
"""Every file that is served, by its name; requests never reach the file system."""


@router.get("/", response_class=Response)
async def index(request: Request) -> Response:
    """Return the dashboard's page."""
    return _respond(FILES["index.html"], request)


@router.get("/dashboard/{file:path}", response_class=Response)
async def static_file(file: str, request: Request) -> Response:
    """Return a file of the dashboard."""
    if file not in FILES:
        raise HTTPException(404)
    return _respond(FILES[file], request)


def _respond(file: StaticFile, request: Request) -> Response:
    """Return the file, or 304 if the browser's copy is current; browsers revalidate every time."""
    headers = {**SECURITY_HEADERS, "cache-control": "no-cache", "vary": "accept-encoding"}
    encodings = ",".join(request.headers.getlist("accept-encoding"))
    if prefers(encodings, "gzip", "identity"):
        file = file.zipped
        headers["content-encoding"] = "gzip"
    headers["etag"] = file.etag
    if is_known(request, file.etag):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
