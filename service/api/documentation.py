"""The OpenAPI document as pages, whose scripts and styles come from this service and no other host.

The files of Swagger UI and ReDoc are those that the package fastapi-offline carries.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fastapi import APIRouter, HTTPException
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from starlette.responses import FileResponse, HTMLResponse

OWN_IMAGES = "img-src 'self' data:"
"""Content security policy that keeps a page's images to this service."""
FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "redoc.standalone.js")

router = APIRouter(include_in_schema=False)


def static_folder() -> Path:
    """The folder of the files, found without importing their package."""
    found = importlib.util.find_spec("fastapi_offline")
    assert found is not None  # noqa: S101 - a dependency
    assert found.origin is not None  # noqa: S101 - a package of files
    return Path(found.origin).parent / "static"


@router.get("/docs")
async def swagger() -> HTMLResponse:
    """Swagger UI."""
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Headscope - Swagger UI",
        swagger_js_url="/docs/swagger-ui-bundle.js",
        swagger_css_url="/docs/swagger-ui.css",
        swagger_favicon_url="/dashboard/favicon.svg",
    )


@router.get("/redoc")
async def redoc() -> HTMLResponse:
    """ReDoc, whose logo a browser would load from its maker."""
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
    """A file of the pages."""
    if file not in FILES:
        raise HTTPException(404)
    return FileResponse(static_folder() / file)
