"""Requests that are no HTTP, against a server process as it ships."""

from __future__ import annotations

import httpx
import pytest

from tests import raw_http
from tests.journeys.conftest import running

pytestmark = pytest.mark.e2e
CANARY = {"inputs": ["still", "here?"]}


@pytest.mark.parametrize("seed", [0])
def test_each_is_answered_or_cut_off_and_nobody_notices(seed: int) -> None:
    with running("--engine", "fake", "--client-timeout-seconds", "1") as url:
        before = httpx.post(f"{url}/attention", json=CANARY)
        assert before.status_code == 200
        summary = raw_http.run(url, 300, seed)
        after = httpx.post(f"{url}/attention", json=CANARY)
        assert httpx.get(f"{url}/health/ready").status_code == 200
    assert not summary.five_hundreds
    assert not summary.hangs
    assert not summary.truncated
    assert summary.closed + summary.statuses.total() == 300
    assert set(summary.statuses) <= {200, 400, 404, 405, 408, 413, 415, 422, 431}
    assert {200, 400, 408, 431} <= set(summary.statuses)
    assert after.content == before.content
