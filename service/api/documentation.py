"""Swagger UI and ReDoc pages of the OpenAPI document, with all files served locally.

The scripts and styles come from the package fastapi-offline.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fastapi import APIRouter, HTTPException
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from starlette.responses import FileResponse, HTMLResponse

OWN_IMAGES = "img-src 'self' data:"
"""Content security policy that restricts a page's images to this service."""
FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "redoc.standalone.js")

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
