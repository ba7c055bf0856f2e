"""A browser, a service for texts of up to 512 tokens, and what they share.

Nothing outlives the package: while Playwright runs, no other event loop can in this thread.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext

from tests.journeys import conftest
from tests.journeys.dashboard.browser import VIEWER, Visitor, launched
from tests.journeys.dashboard.oracle import Answer


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium; without one, everything that needs it is skipped."""
    with launched() as browser:
        yield browser


@pytest.fixture(scope="package")
def dashboard_url(browser: Browser) -> Iterator[str]:
    """A service that takes 512 tokens; not started where there is no browser."""
    with conftest.running("--max-length", "512") as url:
        yield url


@pytest.fixture(scope="package")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """What pages share that nobody asks more of: the browser's cache, and nothing else.

    One page stays open to the end: with each first window, Chromium starts a process for its own
    pages, which takes most of a second.
    """
    with browser.new_context(**VIEWER) as context:
        context.new_page()
        yield context


@pytest.fixture(scope="package")
def api(dashboard_url: str) -> Iterator[httpx.Client]:
    """The same service, without the page."""
    with httpx.Client(base_url=dashboard_url, timeout=60) as client:
        yield client


@pytest.fixture(scope="package")
def animal(api: httpx.Client) -> Answer:
    """What the API says of the first text."""
    return Answer(api)


@pytest.fixture
def visitor(context: BrowserContext, dashboard_url: str) -> Iterator[Visitor]:
    """Opens pages; at the end nothing may have been complained of, or asked of another host."""
    visitor = Visitor(context, dashboard_url)
    try:
        yield visitor
        visitor.check()
    finally:
        visitor.close()
