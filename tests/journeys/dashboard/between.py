"""Control of the network between a page and its service, and the page's state meanwhile.

Elements are located as a viewer finds them: by role, by name, by their text.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from playwright.sync_api import Download, Error, Locator, Page, Route, expect

from tests.journeys.dashboard.browser import PATIENCE_SECONDS

ATTENTION = "**/attention"
REFUSED = "ERR_CONNECTION_REFUSED"
SHOWN = {
    "All heads": "72 heads drawn.",
    "One head": "Layer 3 head 1 shown.",
    "Rollout": "Rollout shown.",
    "Ablation": "Switched off: 0. Layer 3 head 1 shown.",
    "Comparison": "Layer 3 head 1 of both texts shown.",
}
"""Status of the page once each view shows layer 3, head 1."""
TABS = {
    "All heads": ("Heads", ""),
    "One head": ("Head", "Map"),
    "Query and key": ("Head", "Query and key"),
    "Rollout": ("Head", "Rollout"),
    "Cross-attention": ("Head", "Cross-attention"),
    "Comparison": ("Compare", "Another text"),
    "Two models": ("Compare", "Another model"),
    "Ablation": ("Compare", "Heads switched off"),
    "Why alike?": ("Why alike?", ""),
    "Many texts": ("Many texts", ""),
    "Search": ("Search", ""),
}
"""The tab of each view, and its tab among the views of that tab."""
LINK = re.compile(r"(.+) → (.+?)\s+\d\.\d{4}")
FULL_STRENGTH = 0.9
"""Minimum opacity of an element that is not dimmed."""

STRENGTH = """(node) => {
  for (const one of document.getAnimations()) one.finish();
  const around = [];
  for (let one = node; one; one = one.parentElement) around.push(getComputedStyle(one).opacity);
  return around.reduce((product, opacity) => product * opacity, 1);
}"""


class Network:
    """Requests of the page to one address, held from now on until the test releases them."""

    def __init__(self, page: Page, address: str = ATTENTION) -> None:
        self.page = page
        self.address = address
        self.held: list[Route] = []
        page.route(address, self._hold)

    def _hold(self, route: Route) -> None:
        self.held.append(route)

    def asked(self, count: int = 1) -> list[Route]:
        """Wait until `count` requests are held, and return them."""
        wait(self.page, lambda: len(self.held) >= count)
        return self.held

    def answer(self, route: Route) -> None:
        """Let one request through; the page may have cancelled it."""
        with contextlib.suppress(Error):
            route.continue_()

    def release(self) -> None:
        """Let all held and later requests through."""
        self.page.unroute(self.address)
        for route in self.held:
            self.answer(route)
        self.held = []


@contextlib.contextmanager
def failing(page: Page, address: str = ATTENTION, *, status: int = 0) -> Iterator[None]:
    """Let every request in the block fail with a status; by default the connection is refused."""

    def fail(route: Route) -> None:
        if status:
            route.fulfill(status=status, content_type="text/plain", body="broken")
        else:
            route.abort("connectionrefused")

    page.route(address, fail)
    yield
    page.unroute(address)


def wait(page: Page, condition: Callable[[], Any]) -> None:
    """Wait until a condition holds, polled while the page's events run."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        page.wait_for_timeout(5)


def told(page: Page, text: str | re.Pattern[str]) -> None:
    """Wait until the page announces a text in its status."""
    expect(page.get_by_role("status").filter(has_text=text).first).to_be_attached()


def view(page: Page) -> Locator:
    """Return the view that is shown."""
    return page.get_by_role("tabpanel")


def head_button(page: Page, group: str, layer: int, head: int) -> Locator:
    """Return the button of one head among all heads."""
    pad = page.get_by_role("group", name=group, exact=True)
    return pad.get_by_role("button", name=re.compile(rf"^Layer {layer} head {head}\b"))


def maps(page: Page) -> Locator:
    """Return every map drawn in the view."""
    return view(page).get_by_role("img")


def enter_text(page: Page, text: str, name: str = "Text") -> None:
    """Type a text and submit it."""
    box = page.get_by_role("textbox", name=name, exact=True)
    box.fill(text)
    box.press("Enter")


def set_option(page: Page, name: str, *, on: bool = True) -> None:
    """Switch an option of the texts on or off, and close the options."""
    button = page.get_by_role("button", name=re.compile("^Options"))
    button.click()
    page.get_by_label(name).set_checked(on)
    page.keyboard.press("Escape")


def strength(place: Locator) -> float:
    """Return an element's opacity, times the opacity of its ancestors, after animations."""
    return float(place.evaluate(STRENGTH))


def tab_of(page: Page, view: str) -> Locator:
    """Return the tab of a view, the one among several views of a tab if it is there."""
    tabs = (page.get_by_role("tab", name=name, exact=True) for name in TABS[view] if name)
    first, second = [*tabs, None][:2]
    assert first is not None
    return second if second is not None and second.count() else first


def turn(page: Page, view: str, act: str = "click") -> None:
    """Open a view by its tab, and by the tab among the views of that one."""
    for _ in range(2):
        tab = tab_of(page, view)
        if tab.get_attribute("aria-selected") != "true":
            tab.press("Enter") if act == "press" else getattr(tab, act)()


def is_marked_old(place: Locator) -> bool:
    """Return whether an element is dimmed and marked busy, as after a newer request."""
    busy = place.evaluate("(node) => Boolean(node.closest('[aria-busy=true]'))")
    return bool(busy) and strength(place) < FULL_STRENGTH


def seen(place: Locator) -> list[Locator]:
    """Return the visible elements."""
    return [one for one in place.all() if one.is_visible()]


class Files:
    """Files that a page saves."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.downloads: list[Download] = []
        page.on("download", self._came)

    def _came(self, download: Download) -> None:
        self.downloads.append(download)

    def button(self, kind: str) -> Locator:
        """Return the button that saves a kind of file."""
        return self.page.get_by_role("button", name=kind, exact=True)

    def try_to_save(self, *kinds: str) -> None:
        """Press the buttons that are enabled."""
        for kind in kinds:
            if self.button(kind).is_enabled():
                self.button(kind).click()

    def save(self, kind: str) -> bytes:
        """Save a file, and return its content."""
        with self.page.expect_download() as download:
            self.button(kind).click()
        return download.value.path().read_bytes()

    def contents(self) -> list[tuple[str, bytes]]:
        """Return the names and contents of all files so far."""
        return [(one.suggested_filename, one.path().read_bytes()) for one in self.downloads]


def pointed_at(page: Page) -> tuple[str, str] | None:
    """Return the two tokens of the cell under the pointer, as the view names them."""
    told = view(page).get_by_text(LINK)
    found = LINK.fullmatch(told.first.inner_text()) if told.count() else None
    return (found[1], found[2]) if found else None


def cell_at(page: Page, heatmap: Locator, names: list[str], row: int, column: int) -> list[float]:
    """Return the position on the page of a map's cell, found by pointing; tokens must differ."""
    box = heatmap.bounding_box()
    assert box is not None

    def found(axis: int, wanted: int) -> float:
        least, most = 0.0, 1.0
        while most - least > 1 / box["width"]:
            middle = (least + most) / 2
            shares = (0.5, middle) if axis == 0 else (middle, 0.5)
            page.mouse.move(*(box[a] + s * box["width"] for a, s in zip("xy", shares, strict=True)))
            cell = pointed_at(page)
            place = names.index(cell[axis]) if cell else (-1 if middle < 0.5 else len(names))
            if place == wanted:
                return middle * box["width"]
            least, most = (middle, most) if place < wanted else (least, middle)
        raise AssertionError("no such cell")

    return [box["x"] + found(1, column), box["y"] + found(0, row)]
