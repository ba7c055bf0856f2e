"""The OpenAPI document has the headers of every model's replies."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.inference.fingerprint import FINGERPRINT_HEADER
from service.inference.text_warnings import HEADERS


@pytest.mark.anyio
async def test_every_route_of_a_model_documents_its_headers(client: httpx.AsyncClient) -> None:
    document: dict[str, Any] = (await client.get("/openapi.json")).json()
    replies = {
        path: operations["post"]["responses"]["200"]
        for path, operations in document["paths"].items()
        if "requestBody" in operations.get("post", {}) and "/repository/" not in path
    }
    assert len(replies) > 20
    for path, reply in replies.items():
        assert {FINGERPRINT_HEADER, "x-model", *HEADERS.values()} <= reply["headers"].keys(), path
        assert reply["description"], path
