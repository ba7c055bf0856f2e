"""Security schemes of the OpenAPI document, so that its pages can send an API key."""

from __future__ import annotations

from fastapi import FastAPI

from service.telemetry.probe_paths import PROBE_PATHS

SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer KEY"},
    "basic": {"type": "http", "scheme": "basic", "description": "any user; the key as password"},
}


def describe_keys(app: FastAPI) -> None:
    """Mark every route except the probes as requiring an API key."""
    generate = app.openapi

    def openapi() -> dict[str, object]:
        document = generate()
        document.setdefault("components", {})["securitySchemes"] = SCHEMES
        document["security"] = [{name: []} for name in SCHEMES]
        for path in PROBE_PATHS & document["paths"].keys():
            for operation in document["paths"][path].values():
                operation["security"] = []
        return document

    app.openapi = openapi  # type: ignore[method-assign]
