"""Time until the dashboard is drawn in Chromium over a slow line.

Run: python -m benchmarks.opening [--rounds N] [--latency-ms N] [--before FOLDER]. FOLDER is a
checkout of an earlier version, which serves its own page. The DevTools protocol delays every
request by the latency. Each round opens every page with an empty cache, then reloads it, in turn;
figures are medians over the rounds. Requests to the API are counted apart from those for files.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from benchmarks.harness.report import markdown
from benchmarks.page import FLAGS, VIEWPORT, said, serving

MAX_LENGTH = 128


@dataclass
class Visits:
    """Measurements of opening, or reloading, one page, by round."""

    shell: list[float] = field(default_factory=list)
    """Seconds until the page's script has drawn the page without replies of the API."""
    drawn: list[float] = field(default_factory=list)
    """Seconds until every head is drawn."""
    files: list[int] = field(default_factory=list)
    """Requests for the page and its files that reached the network."""
    calls: list[int] = field(default_factory=list)
    """Requests to the API."""
    bytes: list[int] = field(default_factory=list)
    """Bytes of the replies to requests for files, with headers."""


class Network:
    """Requests of a page that reach the network, with a delay."""

    def __init__(self, session: CDPSession, latency_ms: float) -> None:
        self.paths: dict[str, str] = {}
        self.cached: set[str] = set()
        self.bytes: dict[str, int] = {}
        session.send("Network.enable")
        limits = {"offline": False, "downloadThroughput": -1, "uploadThroughput": -1}
        session.send("Network.emulateNetworkConditions", {**limits, "latency": latency_ms})
        session.on("Network.requestWillBeSent", self._sent)
        session.on("Network.requestServedFromCache", self._from_cache)
        session.on("Network.responseReceived", self._received)
        session.on("Network.loadingFinished", self._finished)

    def clear(self) -> None:
        for requests in (self.paths, self.cached, self.bytes):
            requests.clear()

    def _sent(self, event: dict[str, Any]) -> None:
        self.paths[event["requestId"]] = urlsplit(event["request"]["url"]).path

    def _from_cache(self, event: dict[str, Any]) -> None:
        self.cached.add(event["requestId"])

    def _received(self, event: dict[str, Any]) -> None:
        if event["response"].get("fromDiskCache"):
            self.cached.add(event["requestId"])

    def _finished(self, event: dict[str, Any]) -> None:
        self.bytes[event["requestId"]] = int(event["encodedDataLength"])

    def record(self, visits: Visits) -> None:
        """Append the counts of requests since `clear`."""
        sent = {request: path for request, path in self.paths.items() if request not in self.cached}
        files = [r for r, path in sent.items() if path == "/" or path.startswith("/dashboard/")]
        visits.files.append(len(files))
        visits.calls.append(len(sent) - len(files))
        visits.bytes.append(sum(self.bytes.get(request, 0) for request in files))


def visit(page: Page, act: Any, network: Network, visits: Visits) -> None:
    """Open or reload a page, and append its measurements to `visits`."""
    network.clear()
    started = time.perf_counter()
    act()
    page.wait_for_function("() => document.querySelector('main')")
    visits.shell.append(time.perf_counter() - started)
    page.wait_for_function(f"() => {said('heads drawn.')}")
    visits.drawn.append(time.perf_counter() - started)
    page.wait_for_load_state("networkidle")
    network.record(visits)


def look(browser: Browser, url: str, latency_ms: float, opened: Visits, reloaded: Visits) -> None:
    """Open a page with an empty cache, and reload it."""
    with browser.new_context(viewport=VIEWPORT) as context:
        page = context.new_page()
        network = Network(context.new_cdp_session(page), latency_ms)
        visit(page, lambda: page.goto(url, wait_until="commit"), network, opened)
        visit(page, lambda: page.reload(wait_until="commit"), network, reloaded)


def table(rows: dict[str, Visits]) -> str:
    """Return a Markdown table, a row a page and kind of visit: medians over the rounds."""
    heads = ("", "page, s", "heads drawn, s", "requests for files", "kB", "requests to the API")
    mid = statistics.median
    cells = [
        (
            *(name, f"{mid(visits.shell):.2f}", f"{mid(visits.drawn):.2f}"),
            *(f"{mid(visits.files):.0f}", f"{mid(visits.bytes) / 1000:.1f}"),
            f"{mid(visits.calls):.0f}",
        )
        for name, visits in rows.items()
    ]
    return markdown(heads, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--latency-ms", type=float, default=100)
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version")
    options = parser.parse_args()
    checkouts = {"now": Path(__file__).parents[1]}
    if options.before:
        checkouts = {"before": options.before.resolve(), **checkouts}
    with contextlib.ExitStack() as stack:
        urls = {
            name: stack.enter_context(serving(folder, MAX_LENGTH)).url
            for name, folder in checkouts.items()
        }
        path = shutil.which("chromium-headless-shell") or "/usr/bin/chromium"
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        stack.callback(browser.close)
        visits = {f"{name}, {kind}": Visits() for name in urls for kind in ("opened", "reloaded")}
        for round_number in range(options.rounds + 1):
            for name, url in urls.items():
                pair = [visits[f"{name}, {kind}"] for kind in ("opened", "reloaded")]
                if not round_number:
                    pair = [Visits(), Visits()]  # the first round warms up
                look(browser, url, options.latency_ms, *pair)
        print(table(visits), flush=True)


if __name__ == "__main__":
    main()
