"""The page around the views: a first visit, room for the answer, definitions, links, and focus."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.journeys.dashboard import axe
from tests.journeys.dashboard.between import TABS, failing, told, turn, view, wait
from tests.journeys.dashboard.browser import Visitor, said

pytestmark = pytest.mark.e2e
SMALLEST_TYPE = 12
SMALL_TYPE = """(least) => [...document.querySelectorAll('body *')]
  .filter((node) => node.checkVisibility() && [...node.childNodes].some(
    (child) => child.nodeType === Node.TEXT_NODE && child.data.trim()))
  .filter((node) => parseFloat(getComputedStyle(node).fontSize) < least)
  .map((node) => node.outerHTML.slice(0, 80))"""
CONTROLS = {
    "Linear colours": "On: colours are in proportion to weights.",
    "Pin this head": "Its lines stay while you view other heads",
}
"""Controls of *One head* beside which a question mark opens what they do."""
FAULTS = """() => [...document.querySelectorAll('#panel *')].filter((node) => {
    const style = getComputedStyle(node);
    if (!node.checkVisibility() || node.closest('[popover], textarea, input')) return false;
    const lines = node.matches('.thumbnail-label') && node.scrollHeight > 64;
    const cut = style.overflowX === 'hidden' && node.scrollWidth > node.clientWidth + 1;
    const beyond = node.getBoundingClientRect().right > innerWidth;
    return lines || cut || (beyond && !node.closest('.scrolls, .mapview-links'));
  }).map((node) => `broken, cut or beyond the window: ${node.outerHTML.slice(0, 80)}`)
  .concat([...document.querySelectorAll('#panel tbody tr')].flatMap((row) => {
    const head = [...row.closest('table').querySelectorAll('thead th')];
    const of = (cell) => getComputedStyle(cell);
    const aside = [...row.children].filter((cell, i) => head.length === row.children.length
      && cell.colSpan === 1 && of(cell).textAlign !== of(head[i]).textAlign
      && [cell, head[i]].some((one) => of(one).textAlign === 'right'));
    const lines = new Set([...row.children].map((cell) => of(cell).borderTopWidth));
    return [...aside, ...(lines.size > 1 ? [row] : [])].map(
      (one) => `beside its heading, or half a line: ${one.outerHTML.slice(0, 80)}`);
  }))"""
"""Words that are cut or broken, columns beside their headings, rows with a line under a part."""
FOLDS = {"desktop": (1100, 800, 400), "phone": (390, 844, 650)}
"""Width and height of a window, and the largest distance of the map from the page's top."""


@pytest.mark.parametrize("window", FOLDS)
def test_the_map_is_above_the_fold(visitor: Visitor, window: str) -> None:
    width, height, most = FOLDS[window]
    page = visitor.open(
        visitor.state(view="head", layer=3, head=1, a="The dog sleeps because it is tired."),
        viewport={"width": width, "height": height},
        has_touch=width < 500,
    )
    told(page, "Layer 3 head 1 shown.")
    box = page.locator(".lines canvas").bounding_box()
    assert box is not None
    assert box["y"] <= most
    assert page.evaluate(SMALL_TYPE, SMALLEST_TYPE) == []
    term = page.get_by_role("button", name="Entropy")
    says = page.get_by_text("nats; 0 when each token", exact=False)
    expect(says).to_be_hidden()
    if width < 500:
        term.tap()
    else:
        term.press("Enter")
    expect(says).to_be_visible()
    shown = says.bounding_box()
    assert shown is not None
    assert 0 <= shown["x"] <= shown["x"] + shown["width"] <= width
    assert 0 <= shown["y"] <= shown["y"] + shown["height"] <= height
    page.keyboard.press("Escape")
    expect(says).to_be_hidden()
    expect(view(page)).to_contain_text("Click or tap a row to choose its pair.")
    for control, meaning in CONTROLS.items():
        page.get_by_role("button", name=f"What is {control}?").press("Enter")
        expect(page.get_by_text(meaning, exact=False)).to_be_visible()
        page.keyboard.press("Escape")


def test_escape_closes_a_definition_alone_and_only_what_can_be_held_is_pointed_at(
    visitor: Visitor,
) -> None:
    page = visitor.open(visitor.state(view="head", layer=3, head=1, pins=10))
    told(page, "Layer 3 head 1 shown.")
    page.get_by_role("button", name="Entropy").press("Enter")
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile("pins=10"))
    lines = page.locator(".lines canvas")
    box = lines.bounding_box()
    for share, cursor in ((0.2, "pointer"), (0.8, "default")):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 60)
        expect(lines).to_have_css("cursor", cursor)
    page.get_by_role("button", name="Hide sinks").click()
    expect(lines).to_have_attribute("aria-label", re.compile("14 to 14"))


@pytest.mark.parametrize("width", [390, 1100])
def test_words_and_columns_fit_in_every_view(visitor: Visitor, width: int) -> None:
    page = visitor.open(viewport={"width": width, "height": 800})
    told(page, "72 heads drawn.")
    found = []
    for name in TABS.keys() - {"Cross-attention", "Two models"}:
        turn(page, name)
        told(page, re.compile(r"(drawn|shown|explained|compared)\."))
        found += [f"{name}: {fault}" for fault in page.evaluate(FAULTS)]
    assert found == []


def test_a_link_is_copied_without_the_clipboards_api(visitor: Visitor) -> None:
    page = visitor.open(visitor.state(view="head", layer=2))
    told(page, "Layer 2 head 0 shown.")
    page.evaluate(
        """() => {
          Object.defineProperty(navigator, 'clipboard', { value: undefined });
          document.addEventListener('copy', () => { window.copied = getSelection().toString(); });
        }"""
    )
    copy = page.get_by_role("button", name="Copy link")
    copy.click()
    expect(page.get_by_text("Link copied.").first).to_be_visible()
    assert page.evaluate("() => window.copied") == page.url
    expect(copy).to_be_focused()
    page.evaluate("() => { document.execCommand = () => false; }")
    copy.click()
    expect(page.get_by_text("Not copied").first).to_be_visible()


def test_a_pair_keeps_its_second_text(visitor: Visitor) -> None:
    page = visitor.open(visitor.state(a="Where?", b="Here.", view="head"))
    pair = page.get_by_label("Sentence pair")
    for on in (False, True):
        told(page, "Layer 0 head 0 shown.")
        pair.set_checked(on)
    expect(page.get_by_label("Second text of the pair")).to_have_value("Here.")


def test_heads_that_the_model_lacks_are_left_out_by_a_click(visitor: Visitor) -> None:
    visitor.expected = ("status of 422",)
    page = visitor.open(visitor.state(view="head", layer=1, off="1.8,11.15", min=0.9))
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("switches off heads that this model does not have (11·15)")
    alert.get_by_role("button", name="Leave them out").click()
    told(page, "Layer 1 head 0 shown.")
    expect(page.get_by_role("complementary")).to_contain_text("(1·8)")
    expect(page.get_by_text("0.02", exact=True)).to_be_visible()


def test_the_focus_stays_in_the_page_after_an_error(visitor: Visitor) -> None:
    visitor.expected = ("status of 500",)
    page = visitor.open(visitor.state(view="head"))
    told(page, "Layer 0 head 0 shown.")
    with failing(page, status=500):
        turn(page, "Rollout")
        page.get_by_role("alert").wait_for()
    again = page.get_by_role("button", name="Try again")
    again.focus()
    again.press("Enter")
    told(page, "Rollout shown.")
    expect(view(page)).to_be_focused()


def test_the_live_panel_of_a_service_that_is_away(visitor: Visitor) -> None:
    visitor.expected = ("ERR_CONNECTION_REFUSED",)
    page = visitor.open(visitor.state(live=1))
    live = page.get_by_role("region", name="Live")
    expect(live).to_contain_text("The service is ready.")
    requests = page.locator("[data-live=requests]")
    wait(page, lambda: requests.inner_text() != "–")
    with failing(page, "**/metrics"):
        expect(live).to_contain_text("The service does not answer")
        expect(requests).to_have_text("–")


DOORS = {
    "What does a head do?": ("Layer 3 head 1 shown.", "Lines lead from each word"),
    "Why are two texts alike?": (re.compile("explained"), "pairs of words"),
    "What happens without it?": ("Switched off: 2.", "Click heads to switch them off"),
}
"""Doors of a first visit: what the page announces behind each, and what it says there."""


def test_three_doors_lead_from_a_first_visit(visitor: Visitor) -> None:
    page = visitor.open()
    start = page.get_by_role("region", name="Start here")
    for door, (announced, says) in DOORS.items():
        told(page, "72 heads drawn.")
        start.get_by_role("button", name=door).click()
        told(page, announced)
        expect(view(page)).to_contain_text(says)
        expect(start).to_be_hidden()
        page.go_back()
    expect(start).to_be_visible()
    assert axe.violations(page) == []


def test_an_example_is_asked_with_its_other_text(visitor: Visitor) -> None:
    page = visitor.open(visitor.state(a="Where?", b="Here.", view="comparison", pins=1))
    page.get_by_role("button", name="Examples").click()
    examples = page.get_by_role("group", name="Examples")
    expect(examples.get_by_role("button")).to_have_count(8)
    assert axe.violations(page) == []
    examples.get_by_role("button", name="Ambiguous word").click()
    expect(examples).to_be_hidden()
    expect(page.get_by_label("Text", exact=True)).to_have_value("She sat on the bank of the river.")
    other = page.get_by_label("Other text", exact=True)
    expect(other).to_have_value("She opened an account at the bank.")
    expect(view(page)).to_contain_text("The same word in two meanings")
    expect(page.get_by_label("Sentence pair")).not_to_be_checked()
    expect(page).not_to_have_url(re.compile("pins"))
    page.go_back()
    expect(page.get_by_label("First text of the pair")).to_have_value("Where?")


TRANSFERRED = """() => performance.getEntriesByType('resource')
  .filter(({ transferSize }) => transferSize > 0).map(({ name }) => name)"""
"""Script that returns the addresses of what came over the network and not from the cache."""
DIGEST = re.compile(r"/dashboard/[0-9a-f]{32}/")


def files_of(page: Page) -> set[str]:
    """Return the names of the dashboard's files that came over the network."""
    said(page, "72 heads drawn.")
    paths = {urlsplit(address).path for address in page.evaluate(TRANSFERRED)}
    assert paths & {"/attention", "/info"} == {"/attention", "/info"}
    files = {path for path in paths if path.startswith("/dashboard/")}
    assert all(DIGEST.match(path) for path in files)
    return {PurePosixPath(path).name for path in files}


def test_a_reload_asks_for_no_file_again(visitor) -> None:
    """Every file has its digest in its path; all modules are one script."""
    page = visitor.open(color_scheme="light")
    assert files_of(page) == {"bundle.js", "favicon.svg", "style.css", "theme.js"}
    page.reload()
    assert files_of(page) == set()
