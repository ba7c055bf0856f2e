"""Errors in OpenAI's form."""

from __future__ import annotations

import json

import pytest

from model.artifact.manifest import Artifact
from service.api.openai.errors import error_response
from service.errors import (
    EngineUnavailable,
    InputTooLong,
    ServiceError,
    UnknownModel,
    Unprocessable,
)
from tests.service.harness import serving
from tests.service.several import fake_of


@pytest.mark.parametrize(
    ("error", "kind", "param", "code"),
    [
        (UnknownModel("there are: a"), "invalid_request_error", "model", "model_not_found"),
        (InputTooLong("input[3] has 9 tokens"), "invalid_request_error", "input", "input_too_long"),
        (Unprocessable("inputs are many"), "invalid_request_error", None, "unprocessable"),
        (EngineUnavailable("x", retry_after_seconds=5), "server_error", None, "engine_unavailable"),
    ],
)
def test_form(error: ServiceError, kind: str, param: str | None, code: str) -> None:
    """https://platform.openai.com/docs/guides/error-codes"""
    response = error_response(error, "an-id")
    assert response.status_code == (400 if error.status == 422 else error.status)
    assert response.headers["content-type"] == "application/json"
    assert response.headers.get("retry-after") == ("5" if kind == "server_error" else None)
    assert json.loads(bytes(response.body)) == {
        "error": {"message": error.detail, "type": kind, "param": param, "code": code}
    }


@pytest.mark.anyio
async def test_a_missing_key_is_told_in_it(artifact: Artifact) -> None:
    async with serving(artifact, fake_of(artifact), api_keys="k") as client:
        refused = await client.get("/v1/models")
        assert (refused.status_code, refused.json().keys()) == (401, {"error"})
        assert refused.json()["error"].keys() == {"message", "type", "param", "code"}
        assert (await client.post("/v1/models", auth=("", "k"))).json().keys() == {"error"}
