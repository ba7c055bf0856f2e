"""Waiting times of the dashboard in Chromium, of this checkout and of an earlier one.

Run: python -m benchmarks.page [--rounds N] [--tokens S …] [--before FOLDER]. FOLDER is a checkout
of an earlier version, which serves its own page. Each round does the same on every page, in turn:
open it and draw every head, draw another text, open another head, move the mouse over the heatmap,
and find the heads that link two tokens. Figures are medians over the rounds; ratios are within a
round. A wait ends two frames after the page reports the end, when the change is painted.
"""

from __future__ import annotations

import argparse
import contextlib
import http
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import psutil
from playwright.sync_api import Browser, CDPSession, Page, sync_playwright
from tokenizers import Tokenizer

from benchmarks.harness.report import markdown
from benchmarks.harness.servers import artifact_of
from benchmarks.views import SAFETENSORS, prose_of
from model.artifact.manifest import TOKENIZER
from testing.blocking import Session
from testing.process import Service, clean_environment, free_port

LAYER, HEADS = 2, (0, 1)
"""Layer of the heads; the head that is shown first, and the head that is clicked."""
MOVES = 12
VIEWPORT = {"width": 1360, "height": 1300}
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
MIB = 2**20
WAITING = """
() => new Promise((resolve) => {
  const started = performance.now();
  const painted = () => resolve(performance.now() - started);
  const look = () => {
    if (!(%(done)s)) return;
    observer.disconnect();
    requestAnimationFrame(() => requestAnimationFrame(painted));
  };
  const observer = new MutationObserver(look);
  observer.observe(document, { childList: true, subtree: true, characterData: true });
  %(act)s;
})
"""
"""Script that returns the milliseconds from an action to the paint of its result."""
REQUEST = """
() => performance.getEntriesByType('resource')
  .filter(({ name }) => name.endsWith('/attention')).at(-1).duration
"""
HOVERING = """
() => {
  window.answered = null;
  let moved = null;
  addEventListener('pointermove', () => { moved = performance.now(); }, { capture: true });
  const look = () => {
    if (moved === null) return;
    const from = moved;
    moved = null;
    const painted = () => { window.answered = performance.now() - from; };
    requestAnimationFrame(() => requestAnimationFrame(painted));
  };
  const all = { childList: true, subtree: true, characterData: true };
  for (const node of document.querySelectorAll('.readout, .links caption'))
    new MutationObserver(look).observe(node, all);
}
"""


@dataclass
class Looks:
    """Measurements of one page by round: seconds of each wait, bytes, memory."""

    load: list[float] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    text: list[float] = field(default_factory=list)
    """Seconds to draw another text in the open page."""
    text_bytes: list[int] = field(default_factory=list)
    click: list[float] = field(default_factory=list)
    hover: list[float] = field(default_factory=list)
    find: list[float] = field(default_factory=list)
    found_bytes: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    base: list[float] = field(default_factory=list)
    """Seconds of a request for one head of each layer."""
    one: list[float] = field(default_factory=list)
    """Seconds of the request for the clicked head, as the browser timed it."""


class Traffic:
    """Bytes and number of the replies that a page receives."""

    def __init__(self, session: CDPSession) -> None:
        self.bytes = self.requests = 0
        session.send("Network.enable")
        session.on("Network.loadingFinished", self._finished)

    def _finished(self, event: dict[str, float]) -> None:
        self.bytes += int(event["encodedDataLength"])
        self.requests += 1


def look(browser: Browser, url: str, session: Session, text: str, looks: Looks) -> None:
    """Run one round on one page, and append its measurements to `looks`."""
    looks.base.append(asked(session, {"inputs": text, "heads": [HEADS[0]]}))
    with browser.new_context(viewport=VIEWPORT) as context:
        page = context.new_page()
        traffic = Traffic(context.new_cdp_session(page))
        started = time.perf_counter()
        page.goto(f"{url}/#{urlencode({'a': text})}")
        page.wait_for_function(f"() => {said('heads drawn.')}")
        page.evaluate(
            "() => new Promise((end) => requestAnimationFrame(() => requestAnimationFrame(end)))"
        )
        looks.load.append(time.perf_counter() - started)
        looks.requests.append(traffic.requests)
        looks.memory.append(renderer_bytes())

        go(page, {"a": text, "view": "head", "layer": LAYER, "head": HEADS[0]}, HEADS[0])
        fetched, text = traffic.bytes, " ".join(reversed(text.split()))
        drawn = said("heads drawn.")
        looks.text.append(waited(page, go_to({"a": text}), drawn))
        looks.text_bytes.append(traffic.bytes - fetched)

        go(page, {"a": text, "view": "head", "layer": LAYER, "head": HEADS[0]}, HEADS[0])
        page.evaluate("() => performance.clearResourceTimings()")
        press = f"document.querySelectorAll('.pad button')[{LAYER * 12 + HEADS[1]}].click()"
        shown = said(f"Layer {LAYER} head {HEADS[1]} shown.")
        looks.click.append(waited(page, press, shown))
        looks.one.append(page.evaluate(REQUEST) / 1000)
        looks.hover.append(hovered(page))

        fetched = traffic.bytes
        pair = {"from": 3, "to": 5}
        state = {"a": text, "view": "head", "layer": LAYER, "head": HEADS[1], **pair}
        there = "document.querySelectorAll('#finder .chip').length === 8"
        looks.find.append(waited(page, go_to(state), there))
        looks.found_bytes.append(traffic.bytes - fetched)


def waited(page: Page, act: str, done: str) -> float:
    """Return the seconds from an action to the paint of its result."""
    return float(page.evaluate(WAITING % {"act": act, "done": done})) / 1000


def go_to(state: dict[str, object]) -> str:
    """Return the script that navigates to the address of a state."""
    return f"location.hash = {json.dumps('#' + urlencode(state))}"


def said(text: str) -> str:
    """Return the condition that the page's status ends with a text."""
    return f"document.querySelector('#status')?.textContent.endsWith({json.dumps(text)})"


def go(page: Page, state: dict[str, object], head: int) -> None:
    page.evaluate("(hash) => { location.hash = hash; }", "#" + urlencode(state))
    page.wait_for_function(f"() => {said(f'Layer {LAYER} head {head} shown.')}")


def hovered(page: Page) -> float:
    """Return the median seconds from a move of the mouse over the heatmap to its paint."""
    box = page.locator(".heatmap canvas").bounding_box()
    assert box is not None
    page.mouse.move(5, 5)
    page.evaluate(HOVERING)
    seconds = []
    for i in range(1, 1 + MOVES):
        share = i / (1 + MOVES)
        across, down = (86 + share * (box["width"] - 90), 70 + share * (box["height"] - 74))
        page.evaluate("() => { window.answered = null; }")
        page.mouse.move(box["x"] + across, box["y"] + down)
        page.wait_for_function("() => window.answered !== null")
        seconds.append(page.evaluate("() => window.answered") / 1000)
    return statistics.median(seconds)


def renderer_bytes() -> int:
    """Return the bytes of the browser's renderers that no other process shares (USS)."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "--type=renderer" in process.cmdline():
                total += process.memory_full_info().uss
    return total


def asked(session: Session, body: dict[str, object]) -> float:
    """Return the seconds of a request for maps in the binary form."""
    started = time.perf_counter()
    reply = session.ask("/attention", body, {"accept": SAFETENSORS})
    if reply.status != http.HTTPStatus.OK:
        raise SystemExit(reply.body.decode())
    return time.perf_counter() - started


@contextlib.contextmanager
def launched() -> Iterator[Browser]:
    """Launch Chromium, a headless one if possible."""
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def serving(checkout: Path, length: int) -> Iterator[Service]:
    """Serve a checkout with the artifact that it exports."""
    run = [sys.executable, "-m", "service"]
    exported = subprocess.run(
        [*run, "export"], cwd=checkout, stdout=subprocess.PIPE, text=True, check=True
    )
    port = free_port()
    flags = [
        "--artifact",
        exported.stdout.strip(),
        "--max-length",
        str(length),
        "--log-level",
        "error",
    ]
    command = ["env", "-C", str(checkout), *run, "serve", "--port", str(port), *flags]
    with Service(command, port, environment=clean_environment(PYTHONPATH=str(checkout))) as service:
        service.wait_until_ready()
        yield service


def table(pages: dict[str, Looks]) -> str:
    """Return a Markdown table, a row a page: medians, and medians of the rounds' ratios."""
    heads = (
        *("", "open, s", "requests", "another text, s", "× base", "MB", "click to head, ms"),
        *("× its request", "hover, ms", "find, ms", "find, kB", "memory, MiB"),
    )
    mid, rows = statistics.median, []
    for name, looks in pages.items():
        text = mid(a / b for a, b in zip(looks.text, looks.base, strict=True))
        click = mid(a / b for a, b in zip(looks.click, looks.one, strict=True))
        rows.append(
            (
                *(name, f"{mid(looks.load):.2f}", mid(looks.requests), f"{mid(looks.text):.2f}"),
                *(f"{text:.1f}", f"{mid(looks.text_bytes) / 1e6:.2f}"),
                *(f"{1000 * mid(looks.click):.0f}", f"{click:.2f}"),
                *(f"{1000 * mid(looks.hover):.0f}", f"{1000 * mid(looks.find):.0f}"),
                *(f"{mid(looks.found_bytes) / 1000:.0f}", f"{mid(looks.memory) / MIB:.0f}"),
            )
        )
    return markdown(heads, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, nargs="+", default=[20, 128, 512])
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version")
    options = parser.parse_args()
    checkouts = {"now": Path(__file__).parents[1]}
    if options.before:
        checkouts = {"before": options.before.resolve(), **checkouts}
    tokenizer = Tokenizer.from_file(str(artifact_of("fp32") / TOKENIZER))
    with contextlib.ExitStack() as stack:
        longest = max(options.tokens)
        services = {
            name: stack.enter_context(serving(one, longest)) for name, one in checkouts.items()
        }
        browser = stack.enter_context(launched())
        sessions = {name: stack.enter_context(Session(one.port)) for name, one in services.items()}
        for tokens in options.tokens:
            text = prose_of(tokens, tokenizer)
            pages = {name: Looks() for name in services}
            for round_number in range(options.rounds + 1):
                for name, service in services.items():
                    looks = pages[name] if round_number else Looks()  # the first round warms up
                    look(browser, service.url, sessions[name], text, looks)
            print(f"\n{tokens} tokens\n\n{table(pages)}", flush=True)


if __name__ == "__main__":
    main()
