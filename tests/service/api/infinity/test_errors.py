"""Errors in Infinity's form."""

from __future__ import annotations

import json

import pytest

from service.api.infinity.errors import error_response
from service.errors import (
    EngineFailed,
    NoTaskHead,
    Overloaded,
    ServiceError,
    UnknownModel,
    Unprocessable,
)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnknownModel("there are: a"), 400),
        (NoTaskHead("no"), 400),
        (Unprocessable("query: no"), 422),
        (Overloaded("full", retry_after_seconds=2), 429),
        (EngineFailed("broken"), 500),
    ],
)
def test_form(error: ServiceError, status: int) -> None:
    """`infinity_emb/fastapi_schemas/errors.py`; FastAPI's `detail` where a schema is not met."""
    response = error_response(error, "an-id")
    body = json.loads(bytes(response.body))
    assert response.status_code == status
    nested = {"message": error.detail, "type": None, "param": None, "code": status}
    assert body["error"] == nested
    if status == 422:
        (detail,) = body["detail"]
        assert (detail.keys(), detail["msg"]) == ({"loc", "msg", "type"}, error.detail)
    else:
        assert body.keys() == {"error"}
    assert response.headers.get("retry-after") == ("2" if status == 429 else None)
