"""Fixtures of the dashboard: a browser, and a service for texts of up to 512 tokens.

Nothing outlives the package: while Playwright runs, no other event loop can in this thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext

from model.artifact.manifest import Artifact
from tests.journeys import conftest
from tests.journeys.dashboard.browser import VIEWER, Visitor, launched
from tests.journeys.dashboard.oracle import Answer
from tests.model.hybrid_checkpoints import write_hybrid
from tests.model.task_checkpoints import write_sparse_checkpoint


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
def url_of_kinds(
    browser: Browser,
    exported: Callable[..., Artifact],
    cross_checkpoint: Path,
    late_artifact: Artifact,
    tiny_checkpoint: Path,
    bart_artifact: Artifact,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """Run a service of one small model of each kind; one of them has a prompt."""
    folder = tmp_path_factory.mktemp("kinds")
    models = {
        "cross": exported(cross_checkpoint, "cross"),
        "late": late_artifact,
        "sparse": exported(write_sparse_checkpoint(folder / "sparse"), "splade-max"),
        "hybrid": exported(write_hybrid(folder / "hybrid"), "hybrid"),
        "translator": bart_artifact,
        "prompted": exported(tiny_checkpoint, "tiny"),
    }
    tables = [f"[model.{name}]\nartifact = '{one.folder}'" for name, one in models.items()]
    config = folder / "headscope.toml"
    config.write_text("\n".join([*tables, 'prompts = { web = "the a: " }']))
    with conftest.running("--config", str(config)) as url:
        yield url


@pytest.fixture
def visitor_of_kinds(context: BrowserContext, url_of_kinds: str) -> Iterator[Visitor]:
    """Yield a visitor of the service of all kinds of models."""
    visitor = Visitor(context, url_of_kinds)
    yield visitor
    visitor.check()
    visitor.close()


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
