"""The OpenAPI document, and its Swagger UI and ReDoc pages with all files served locally.

The scripts and styles come from the package fastapi-offline.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import threading
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response

from service.api.wire.route import JsonRoute
from service.api.wire.schemas import all_named
from service.telemetry.requests import PROBE_PATHS

OWN_IMAGES = "img-src 'self' data:"
"""Content security policy that restricts a page's images to this service."""
FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "redoc.standalone.js")
UNAUTHORIZED = {"401": {"description": "API key missing or wrong"}}
HEAD_ERRORS = {"421": {"description": "Unknown host"}, "431": {"description": "Head too large"}}
FASTAPI_SCHEMAS = ("HTTPValidationError", "ValidationError")
"""Schemas of FastAPI's own 422, which no route answers with."""
SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer KEY"},
    "basic": {"type": "http", "scheme": "basic", "description": "any user; the key as password"},
}

router = APIRouter(include_in_schema=False)


def static_folder() -> Path:
    """Return the folder of the files, without importing the package fastapi-offline."""
    spec = importlib.util.find_spec("fastapi_offline")
    assert spec is not None  # noqa: S101 - a dependency
    assert spec.origin is not None  # noqa: S101 - a package of files
    return Path(spec.origin).parent / "static"


@router.get("/docs")
async def swagger() -> HTMLResponse:
    """Return the page of Swagger UI."""
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Headscope - Swagger UI",
        swagger_js_url="/docs/swagger-ui-bundle.js",
        swagger_css_url="/docs/swagger-ui.css",
        swagger_favicon_url="/dashboard/favicon.svg",
    )


@router.get("/redoc")
async def redoc() -> HTMLResponse:
    """Return the page of ReDoc, whose external logo the content security policy blocks."""
    page = get_redoc_html(
        openapi_url="/openapi.json",
        title="Headscope - ReDoc",
        redoc_js_url="/docs/redoc.standalone.js",
        redoc_favicon_url="/dashboard/favicon.svg",
        with_google_fonts=False,
    )
    page.headers["content-security-policy"] = OWN_IMAGES
    return page


@router.get("/docs/{file}")
async def static_file(file: str) -> FileResponse:
    """Return a script or stylesheet of the pages."""
    if file not in FILES:
        raise HTTPException(404)
    return FileResponse(static_folder() / file)


async def openapi_document(request: Request) -> Response:
    """Return the OpenAPI document, which a thread generates, once: it takes a third of a second.

    The schemas of requests are built before, on the event loop, which validates with them.
    """
    app: FastAPI = request.app
    for route in app.routes:
        if isinstance(route, JsonRoute):
            route.build_schemas()
            await asyncio.sleep(0)
    return await asyncio.to_thread(lambda: JSONResponse(app.openapi()))


router.add_route("/openapi.json", openapi_document, include_in_schema=False)


def describe(app: FastAPI, *, keys: bool) -> None:
    """Describe in the OpenAPI document what holds for every route, without FastAPI's own 422.

    With `keys`, every route except the probes requires an API key.
    """
    generating = threading.Lock()

    def openapi() -> dict[str, Any]:
        with generating:  # FastAPI's suppression of warnings is not safe between threads
            return generated()

    @functools.cache
    def generated() -> dict[str, Any]:
        routes = [one.documented() if isinstance(one, JsonRoute) else one for one in app.routes]
        document = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=routes
        )
        for path, operations in document["paths"].items():
            probe = path in PROBE_PATHS
            errors = HEAD_ERRORS if probe else UNAUTHORIZED | HEAD_ERRORS
            for operation in operations.values():
                responses = operation["responses"]
                if FASTAPI_SCHEMAS[0] in str(responses.get("422")):
                    del responses["422"]
                operation["responses"] = errors | responses
                if keys and probe:
                    operation["security"] = []
        components = document.setdefault("components", {})
        components["schemas"] = all_named() | components.get("schemas", {})
        for name in FASTAPI_SCHEMAS:
            components["schemas"].pop(name, None)
        if keys:
            components["securitySchemes"] = SCHEMES
            document["security"] = [{name: []} for name in SCHEMES]
        return document

    app.openapi = openapi  # type: ignore[method-assign]
