"""`GET /`: the dashboard, a page of static files that calls this API and no other host.

The page names its files by paths with their digests, which browsers keep for a year. All modules
are one script, and those for pictures another, which is loaded when it is needed; each module alone
is served for the source map.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from service.api.wire.media import is_known, prefers
from service.api.wire.route import ApiExchange
from service.dashboard.bundle import Bundle, bundle

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".map": "application/json",
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

PAGE, ENTRY, BUNDLE = "index.html", "main.js", "bundle.js"
PART_ENTRY, PART = "pictures/page.js", "pictures.js"
"""Script that pages of models for pictures load, and its entry."""
PAGE_FOR_PICTURES = "pictures.html"
"""Page of a model for pictures, which does not begin with a text."""
DIGEST = re.compile(r"[0-9a-f]{32}")
"""Form of a digest in a path."""
KEEP, REVALIDATE = "public, max-age=31536000, immutable", "no-cache"
"""Values of `cache-control`: a path with the file's digest, and any other path."""

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class StaticFile:
    """Dashboard file in memory."""

    content: bytes
    media_type: str

    @functools.cached_property
    def digest(self) -> str:
        """First 128 bits of the content's SHA-256."""
        return hashlib.sha256(self.content).hexdigest()[:32]

    @functools.cached_property
    def zipped(self) -> bytes:
        """Content compressed with gzip."""
        return gzip.compress(self.content, mtime=0)


def _entries(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    """Yield the relative path and entry of every file in a folder, recursively."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _entries(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", entry


@functools.cache
def files() -> Mapping[str, StaticFile]:
    """Return every file that is served, by its name; requests never reach the file system.

    The first request of a file reads all of them, and makes the script.
    """
    read = {}
    for name, entry in _entries(resources.files("service.dashboard")):
        media_type = MEDIA_TYPES.get("." + name.rpartition(".")[2])
        if media_type:
            read[name] = StaticFile(entry.read_bytes(), media_type)
    modules = {name: f.content.decode() for name, f in read.items() if name.endswith(".js")}

    def add(name: str, bundled: Bundle) -> None:
        read[name] = StaticFile(bundled.script.encode(), MEDIA_TYPES[".js"])
        read[f"{name}.map"] = StaticFile(bundled.source_map.encode(), MEDIA_TYPES[".map"])

    part = bundle(modules, PART_ENTRY, f"../{PART}.map", first=ENTRY)
    add(PART, part)
    parts = {PART_ENTRY: (f"../{read[PART].digest}/{PART}", part)}
    add(BUNDLE, bundle(modules, ENTRY, f"../{BUNDLE}.map", parts))

    def with_digest(found: re.Match[str]) -> str:
        return f'"dashboard/{read[found[1]].digest}/{found[1]}"'

    page = re.sub(r'"dashboard/([^"]+)"', with_digest, read[PAGE].content.decode())
    marked = page.replace("<html ", '<html data-reads="pictures" ', 1)
    read[PAGE] = StaticFile(page.encode(), MEDIA_TYPES[".html"])
    read[PAGE_FOR_PICTURES] = StaticFile(marked.encode(), MEDIA_TYPES[".html"])
    return read


@router.get("/", response_class=Response)
@router.head("/", include_in_schema=False)
async def index(request: Request, exchange: ApiExchange) -> Response:
    """Return the dashboard's page, for texts or for pictures."""
    name = (
        PAGE_FOR_PICTURES if _reads_pictures(exchange, request.query_params.get("model")) else PAGE
    )
    return _respond(files()[name], request, REVALIDATE)


def _reads_pictures(exchange: ApiExchange, name: str | None) -> bool:
    """Return whether the page's model is loaded and reads pictures."""
    models = exchange.service.models
    served = models.loaded_default if name is None else models.by_name.get(name)
    return served is not None and any(tower.inference.manifest.images for tower in served.towers)


@router.get("/dashboard/{file:path}", response_class=Response)
async def static_file(file: str, request: Request) -> Response:
    """Return a file of the dashboard, by its name or by `digest/name`.

    With a digest of another release, as pages have during a rolling update, it returns this
    release's file, which browsers revalidate.
    """
    digest, _, name = file.partition("/")
    if not DIGEST.fullmatch(digest):
        digest, name = "", file
    known = files().get(name)
    if known is None:
        raise HTTPException(404)
    return _respond(known, request, KEEP if digest == known.digest else REVALIDATE)


def _respond(file: StaticFile, request: Request, cache_control: str) -> Response:
    """Return the file, or 304 if the browser's copy is current."""
    headers = {**SECURITY_HEADERS, "cache-control": cache_control, "vary": "accept-encoding"}
    encodings = ",".join(request.headers.getlist("accept-encoding"))
    if prefers(encodings, "gzip", "identity"):
        content, etag = file.zipped, f'"{file.digest}-gzip"'
        headers["content-encoding"] = "gzip"
    else:
        content, etag = file.content, f'"{file.digest}"'
    headers["etag"] = etag
    if is_known(request, etag):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=file.media_type)
