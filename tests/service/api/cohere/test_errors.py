"""Errors in Cohere's form."""

from __future__ import annotations

import json

import pytest

from service.api.cohere.errors import error_response
from service.errors import NoTaskHead, Overloaded, ServiceError, UnknownModel, Unprocessable


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnknownModel("there are: a"), 404),
        (NoTaskHead("no"), 400),
        (Unprocessable("query: no"), 400),
        (Overloaded("full", retry_after_seconds=2), 429),
    ],
)
def test_form(error: ServiceError, status: int) -> None:
    """https://docs.cohere.com/reference/errors"""
    response = error_response(error, "an-id")
    assert response.status_code == status
    assert json.loads(bytes(response.body)) == {"message": error.detail}
    assert response.headers.get("retry-after") == ("2" if status == 429 else None)
