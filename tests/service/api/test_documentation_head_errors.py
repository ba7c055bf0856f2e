"""Errors of a request's head in the OpenAPI document."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.service.harness import Client

pytestmark = pytest.mark.anyio


@pytest.fixture
async def document(client: Client) -> dict[str, Any]:
    return dict((await client.get("/openapi.json")).json())


async def test_every_route_lists_the_errors_of_a_head(document: dict[str, Any]) -> None:
    lacking = [
        f"{method} {path}: {status}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for status in ("401", "421", "431")
        if status not in operation["responses"] and (status != "401" or "/health" not in path)
    ]
    assert lacking == []


async def test_no_route_lists_a_422_of_another_form(document: dict[str, Any]) -> None:
    """FastAPI adds one to each route with parameters."""
    assert "ValidationError" not in json.dumps(document)
    assert "422" not in document["paths"]["/info"]["get"]["responses"]
    assert "422" in document["paths"]["/encode"]["post"]["responses"]
