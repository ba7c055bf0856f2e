"""The OpenAPI document and its pages, which need no other host."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.anyio


async def test_the_documents(client: httpx.AsyncClient) -> None:
    assert "text/html" in (await client.get("/docs")).headers["content-type"]
    document: dict[str, Any] = (await client.get("/openapi.json")).json()
    assert set(document["paths"]) >= {"/encode", "/attention", "/verify", "/info", "/metrics"}
    for name in ("encode", "attention", "verify"):
        operation = document["paths"][f"/{name}"]["post"]
        request = operation["requestBody"]["content"]["application/json"]["schema"]
        assert request == {"$ref": f"#/components/schemas/{name.capitalize()}Request"}
        schema = document["components"]["schemas"][f"{name.capitalize()}Request"]
        assert schema["additionalProperties"] is False
        assert all(field["description"] for field in schema["properties"].values())
        for status, reply in operation["responses"].items():
            binary = {"application/vnd.safetensors"} if name != "verify" else set()
            good = {"application/json"} | binary
            wanted = good if status == "200" else {"application/problem+json"}
            assert set(reply["content"]) == wanted
        problems = {"400", "401", "408", "413", "415", "422", "429", "500", "501", "503", "504"}
        assert set(operation["responses"]) == problems | {"200"}
