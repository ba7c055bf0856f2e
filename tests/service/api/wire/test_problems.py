"""Problem details: the fields of an error, and content that must not appear."""

from __future__ import annotations

import json

import httpx
import pytest

from service.api.wire.problems import Problem, describe_errors, error_reply, problem_response
from service.errors import EngineFailed, EngineUnavailable, Unauthorized
from tests.service.harness import assert_problem

pytestmark = pytest.mark.anyio


async def test_at_most_ten_errors_are_told(client: httpx.AsyncClient) -> None:
    body = {"inputs": "a", **{f"unknown_field_{n}": 1 for n in range(50)}}
    problem = assert_problem(await client.post("/encode", json=body), 422)
    assert problem["detail"].count("Extra inputs") == 10


def test_every_part_of_the_native_form() -> None:
    response = problem_response(EngineUnavailable("down", retry_after_seconds=7), "mine")
    assert response.status_code == 503
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["retry-after"] == "7"
    assert json.loads(bytes(response.body)) == {
        "type": "/problems/engine-unavailable",
        "title": "Engine unavailable",
        "status": 503,
        "detail": "down",
        "error": "down",
        "error_type": "Unhealthy",
        "retryable": True,
        "request_id": "mine",
    }
    assert json.loads(bytes(response.body)).keys() == Problem.model_fields.keys()


def test_a_form_of_its_own_keeps_the_headers_of_the_error() -> None:
    plain = error_reply(EngineFailed("no"), b"no", "text/plain")
    assert (plain.status_code, bytes(plain.body)) == (500, b"no")
    assert {"retry-after", "www-authenticate"}.isdisjoint(plain.headers)
    asked = error_reply(Unauthorized("no key"), b"", "text/plain")
    challenges = asked.headers.getlist("www-authenticate")
    assert [challenge.split()[0] for challenge in challenges] == ["Bearer", "Basic"]


@pytest.mark.parametrize(
    ("location", "reported"),
    [
        (("body", "inputs", 3), "inputs.3: no"),
        (("body", "encoding_format"), "encoding_format: no"),
        (("body", "a b"), "?: no"),
        (("body", "inputs", "<b>", 1), "inputs.?.1: no"),
        (("body", "n" * 40), "n" * 40 + ": no"),
        (("body", "n" * 41), "?: no"),
        (("body", "é"), "?: no"),
        (("body",), "body: no"),
    ],
    ids=str,
)
def test_the_name_of_a_field_is_told_if_it_is_tame(
    location: tuple[str | int, ...], reported: str
) -> None:
    assert describe_errors([{"loc": location, "msg": "no"}]) == reported


def test_a_description_is_one_short_line() -> None:
    errors = [{"loc": ("body", "inputs"), "msg": "m" * 300}] * 5
    reported = describe_errors(errors)
    assert reported.startswith(f"inputs: {'m' * 300}; inputs: ")
    assert len(reported) == 1000
