"""Errors in vLLM's form."""

from __future__ import annotations

import json

import pytest

from service.api.vllm.errors import error_response
from service.errors import (
    EngineFailed,
    NoTaskHead,
    NotExported,
    Overloaded,
    ServiceError,
    UnknownModel,
    Unprocessable,
)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (UnknownModel("there are: a"), 404, "NotFoundError"),
        (NoTaskHead("no"), 400, "BadRequestError"),
        (Unprocessable("no"), 400, "BadRequestError"),
        (EngineFailed("broken"), 500, "InternalServerError"),
        (NotExported("no"), 501, "NotImplementedError"),
        (Overloaded("full", retry_after_seconds=2), 429, "Too Many Requests"),
    ],
)
def test_form(error: ServiceError, status: int, kind: str) -> None:
    """`vllm/entrypoints/serve/utils/error_response.py`."""
    response = error_response(error, "an-id")
    assert response.status_code == status
    nested = {"message": error.detail, "type": kind, "param": None, "code": status}
    assert json.loads(bytes(response.body)) == {"error": nested}
    assert response.headers.get("retry-after") == ("2" if status == 429 else None)
