"""Errors in the forms of Jina and of Cohere's first version."""

from __future__ import annotations

import json

import pytest

from service.api.jina.errors import error_response
from service.errors import NoTaskHead, ServiceError, UnknownModel, Unprocessable


@pytest.mark.parametrize(
    ("error", "status"),
    [(UnknownModel("there are: a"), 404), (NoTaskHead("no"), 400), (Unprocessable("no"), 422)],
)
def test_form(error: ServiceError, status: int) -> None:
    response = error_response(error, "an-id")
    assert response.status_code == status
    body = {"detail": error.detail, "message": error.detail}
    assert json.loads(bytes(response.body)) == body
