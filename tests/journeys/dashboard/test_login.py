"""A service that wants a key asks a browser's user for a password."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.journeys import conftest
from tests.journeys.dashboard.browser import VIEWER, said

pytestmark = pytest.mark.e2e
KEY = "Sesame-99"


@pytest.fixture(scope="module")
def locked(browser: Browser) -> Iterator[str]:
    with conftest.running("--engine", "fake", "--api-keys", f"another,{KEY}") as url:
        yield url


def test_the_key_is_the_password(browser: Browser, locked: str) -> None:
    known = {"username": "anyone", "password": KEY}
    with browser.new_context(**VIEWER, http_credentials=known) as context:
        page = context.new_page()
        failed: list[str] = []
        page.on("requestfailed", lambda request: failed.append(request.url))
        page.on("pageerror", lambda error: failed.append(str(error)))
        reply = page.goto(locked)
        assert reply is not None
        assert reply.status == 200
        said(page, "72 heads drawn.")
        assert failed == []


def test_without_it_there_is_nothing_to_see(browser: Browser, locked: str) -> None:
    wrong = {"username": "anyone", "password": "guess"}
    with browser.new_context(**VIEWER, http_credentials=wrong) as context:
        reply = context.new_page().goto(locked)
        assert reply is not None
        assert reply.status == 401
        assert "Headscope" not in reply.text()
