"""Problems: what is told of an error, and what never is."""

from __future__ import annotations

import httpx
import pytest

from tests.service.harness import assert_problem

pytestmark = pytest.mark.anyio


async def test_at_most_ten_errors_are_told(client: httpx.AsyncClient) -> None:
    body = {"inputs": "a", **{f"unknown_field_{n}": 1 for n in range(50)}}
    problem = assert_problem(await client.post("/encode", json=body), 422)
    assert problem["detail"].count("Extra inputs") == 10
