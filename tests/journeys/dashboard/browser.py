"""Debian's Chromium under Playwright; pages may log nothing and contact no other host."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Response, expect, sync_playwright

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # all pages are of one site: one process for all saves a fifth of a page's processor time
    "--renderer-process-limit=1",
    "--disable-site-isolation-trials",
    "--disable-features=IsolateOrigins,site-per-process",
)
DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"
"""Default model of the service."""
PATIENCE_SECONDS = 60
"""Seconds to wait for a page: a bound that only ends what hangs."""
expect.set_options(timeout=1000 * PATIENCE_SECONDS)
VIEWER: dict[str, Any] = {"viewport": {"width": 1360, "height": 1300}, "color_scheme": "light"}
"""Default viewport and preferences of the browser context."""


def chromium() -> str:
    """Return the browser's path, a headless one if possible; skip the test without a browser."""
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if path is None:
        pytest.skip(
            "no chromium here; tests/journeys/dashboard/install_chromium installs it as root "
            "on Debian"
        )
    return path


@contextlib.contextmanager
def launched() -> Iterator[Browser]:
    """Launch a browser with a profile of its own."""
    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """Visitor that opens the dashboard, and records its complaints and requests."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.replies: list[Response] = []
        self.expected: tuple[str, ...] = ()
        self._opened: list[Page | BrowserContext] = []

    def open(self, address: str = "", **options: Any) -> Page:
        """Open a page, with options in a context of its own; `address` is a hash with its `#`."""
        context = self.context
        if options:
            assert context.browser is not None
            context = context.browser.new_context(**VIEWER | options)
            self._opened.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * PATIENCE_SECONDS)
        self._opened.append(page)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._asked)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("response", lambda response: self.replies.append(response))  # noqa: PLW0108
        page.goto(f"{self.url}/{address}")
        return page

    def state(self, **state: Any) -> str:
        """Return the address of a state."""
        return f"#{urlencode(state)}"

    def attention_bytes(self) -> list[int]:
        """Return the bytes of each reply of /attention so far."""
        replies = [reply for reply in self.replies if reply.url.endswith("/attention")]
        return [int(r.headers.get("content-length") or len(r.body())) for r in replies]

    def check(self) -> None:
        """Check that nothing was complained of, and that no request went to another host."""
        unexpected = [
            text for text in self.complaints if not any(part in text for part in self.expected)
        ]
        assert unexpected == []
        home = urlsplit(self.url).netloc
        away = [url for url in self.requests if urlsplit(url).netloc not in (home, "")]
        assert away == []
        assert self.requests

    def close(self) -> None:
        for opened in reversed(self._opened):
            opened.close()

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _asked(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@contextlib.contextmanager
def traffic(url: str, pause_seconds: float) -> Iterator[list[float]]:
    """Send one-word texts to /encode during the block, and yield the times of the replies."""
    stop = threading.Event()
    times: list[float] = []

    def send() -> None:
        with httpx.Client(base_url=url) as client:
            while not stop.wait(pause_seconds):
                client.post("/encode", json={"inputs": "a", "outputs": ["pooled"]})
                times.append(time.monotonic())

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield times
    finally:
        stop.set()
        thread.join()


def said(page: Page, text: str) -> None:
    """Wait until the page's status says so."""
    expect(page.locator("#status")).to_have_text(text)


def rows_of(page: Page, table: str) -> list[list[str]]:
    """Return the cells of a table's body, as text."""
    return [
        [cell.strip() for cell in row.locator("th, td").all_inner_texts()]
        for row in page.locator(f"{table} tbody tr").all()
    ]


def drawn(page: Page) -> list[str]:
    """Return the pixels of each canvas of the shown map, as data URLs."""
    return page.evaluate(
        "() => [...document.querySelectorAll('.mapview canvas')].map((one) => one.toDataURL())"
    )
