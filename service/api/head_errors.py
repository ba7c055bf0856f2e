"""Errors of a request's head in the OpenAPI document, since every route may answer with them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from service.telemetry.probe_paths import PROBE_PATHS

UNAUTHORIZED = {"401": {"description": "API key missing or wrong"}}
HEAD_ERRORS = {
    "421": {"description": "Unknown host"},
    "431": {"description": "Head too large"},
}
FASTAPI_SCHEMAS = ("HTTPValidationError", "ValidationError")
"""Schemas of FastAPI's own 422, which no route answers with."""


def describe_head_errors(app: FastAPI) -> None:
    """Add the errors of the head to every route that lacks them, and remove FastAPI's own 422."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        for path, operations in document["paths"].items():
            errors = HEAD_ERRORS if path in PROBE_PATHS else UNAUTHORIZED | HEAD_ERRORS
            for operation in operations.values():
                responses = operation["responses"]
                if FASTAPI_SCHEMAS[0] in str(responses.get("422")):
                    del responses["422"]
                operation["responses"] = errors | responses
        for name in FASTAPI_SCHEMAS:
            document.get("components", {}).get("schemas", {}).pop(name, None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
