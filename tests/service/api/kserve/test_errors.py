"""Errors in the protocol's form, with Triton's statuses."""

from __future__ import annotations

import json

import pytest

from service.api.kserve.errors import ERRORS, STATUSES, error_response
from service.api.wire.problems import PROBLEMS
from service.errors import (
    EngineUnavailable,
    InputTooLong,
    Overloaded,
    ReplyTooLarge,
    ServiceError,
    UnknownModel,
)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputTooLong("long"), 400),
        (UnknownModel("there are: a"), 404),
        (ReplyTooLarge("large"), 413),
        (Overloaded("full", retry_after_seconds=2), 503),
        (EngineUnavailable("down", retry_after_seconds=2), 503),
    ],
)
def test_form(error: ServiceError, status: int) -> None:
    """HttpCodeFromError of https://github.com/triton-inference-server/server, http_server.cc."""
    response = error_response(error, "an-id")
    assert response.status_code == status
    assert json.loads(bytes(response.body)) == {"error": error.detail}
    assert response.headers.get("retry-after") == ("2" if status == 503 else None)


def test_every_status_is_in_the_document() -> None:
    statuses = map(int, PROBLEMS)
    assert {STATUSES.get(status, status) for status in statuses} == ERRORS.keys()
