"""Fixtures of the dashboard: a browser, and a service for texts of up to 512 tokens.

Nothing outlives the package: while Playwright runs, no other event loop can in this thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext

from tests.journeys import conftest
from tests.journeys.dashboard.browser import VIEWER, Visitor, launched
from tests.journeys.dashboard.oracle import Answer


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Launch Chromium; without it, skip the tests."""
    with launched() as browser:
        yield browser


@pytest.fixture(scope="package")
def dashboard_url(browser: Browser) -> Iterator[str]:
    """Run a service for 512 tokens; without a browser it is not started."""
    with conftest.running("--max-length", "512") as url:
        yield url


@pytest.fixture(scope="package")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """Return the context of pages without special needs, which share only the browser's cache.

    One page stays open to the end: with each first window, Chromium starts a process for its own
    pages, which takes most of a second.
    """
    with browser.new_context(**VIEWER) as context:
        context.new_page()
        yield context


@pytest.fixture(scope="package")
def api(dashboard_url: str) -> Iterator[httpx.Client]:
    """Return a client of the same service's API."""
    with httpx.Client(base_url=dashboard_url, timeout=60) as client:
        yield client


@pytest.fixture(scope="package")
def animal(api: httpx.Client) -> Answer:
    """Return the API's reply to the first text."""
    return Answer(api)


@pytest.fixture(scope="module")
def call(context: BrowserContext, dashboard_url: str) -> Iterator[Callable[..., Any]]:
    """Yield `call(module, function, *arguments)`, which calls an exported function of a module."""
    visitor = Visitor(context, dashboard_url)
    page = visitor.open("#a=x")

    def call(module: str, function: str, *arguments: Any) -> Any:
        script = f"""async (given) => {{
          const module = await import('/dashboard/{module}.js');
          const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
          const revive = (x) => (x && x.bytes !== undefined ? bytes(x.bytes).buffer
            : x && x.u16 ? new Uint16Array(x.u16) : x && x.f32 ? new Float32Array(x.f32) : x);
          const found = module.{function}(...given.map(revive));
          const plain = (number) => (Number.isFinite(number) ? number : String(number));
          return JSON.parse(JSON.stringify(found, (key, value) => (ArrayBuffer.isView(value)
            ? Array.from(value, plain) : value)));
        }}"""
        return page.evaluate(script, list(arguments))

    yield call
    visitor.check()
    visitor.close()


@pytest.fixture
def visitor(context: BrowserContext, dashboard_url: str) -> Iterator[Visitor]:
    """Yield a visitor, and check at the end that it has no complaints and no foreign requests."""
    visitor = Visitor(context, dashboard_url)
    try:
        yield visitor
        visitor.check()
    finally:
        visitor.close()
