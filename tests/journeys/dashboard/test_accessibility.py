"""Accessibility of every view, by axe-core, in forced colours and by keyboard."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.journeys.dashboard import axe
from tests.journeys.dashboard.between import enter_text, failing, head_button, tab_of, told, turn

pytestmark = pytest.mark.e2e
VIEWS = ("heads", "head", "compared", "rollout", "ablation", "comparison", "why")
SHOWN = re.compile(r"(drawn|shown|explained)\.")
MEDIA = {
    "light": {"color_scheme": "light", "forced_colors": "none"},
    "dark": {"color_scheme": "dark", "forced_colors": "none"},
    "forced": {"color_scheme": "light", "forced_colors": "active"},
}
PADS = {
    "head": "Heads",
    "ablation": "Switch heads off",
    "comparison": "Heads, by how far they differ",
}


WIDTHS = (360, 1360)


def everywhere(page, widths):
    """Return axe-core's violations at each width: of everything in light, of colours in others."""
    found = set()
    for kind, media in MEDIA.items():
        page.emulate_media(**media)
        for width in widths if kind == "light" else widths[-1:]:
            page.set_viewport_size({"width": width, "height": 900})
            found.update(axe.violations(page, "" if kind == "light" else axe.COLOURS))
    return found


@pytest.mark.parametrize("name", VIEWS)
def test_axe_finds_nothing_in_any_view(visitor, name):
    page = visitor.open(
        visitor.state(view=name, layer=3, head=1, off="1.8", live=1, sort="distance")
    )
    told(page, SHOWN)
    found = everywhere(page, WIDTHS)
    assert not found, sorted(found)


def test_axe_finds_nothing_in_a_pair_nor_in_an_error(visitor):
    visitor.expected = ("status of 500",)
    page = visitor.open(visitor.state(view="head", a="Where do cats sleep?", b="Anywhere.", pins=3))
    told(page, SHOWN)
    found = set(axe.violations(page))
    with failing(page, status=500):
        enter_text(page, "Another text.", "First text of the pair")
        page.get_by_role("alert").wait_for()
        found.update(axe.violations(page))
    assert not found, sorted(found)


def test_brown_heads_and_words_are_seen_in_forced_colours(visitor):
    """Brown heads differ by more than their colour, and a light theme gives way to dark colours."""
    stored = [{"name": "headscope-theme", "value": "light"}]
    page = visitor.open(
        visitor.state(view="why", a="The film was good.", c="The film was not good."),
        forced_colors="active",
        color_scheme="dark",
        storage_state={"origins": [{"origin": visitor.url, "localStorage": stored}]},
    )
    told(page, re.compile(r"explained\."))
    heads = page.get_by_role("group", name="Loss without each head").get_by_role("button").all()
    seen = {
        (one.get_attribute("class"), one.evaluate("(it) => getComputedStyle(it).outlineStyle"))
        for one in heads
    }
    assert seen == {("", "solid"), ("less", "dashed")}
    turn(page, "Search")
    told(page, "5 results ranked and explained.")
    ink = page.locator(".mark").first.evaluate("(it) => getComputedStyle(it).color")
    assert min(map(int, re.findall(r"\d+", ink))) > 200, "dark words on a dark ground"
    expect(page.locator("#theme-toggle")).to_be_hidden()


@pytest.mark.parametrize("name", PADS)
def test_every_head_is_seen_in_forced_colours(visitor, name):
    page = visitor.open(visitor.state(view=name, layer=3, head=1), forced_colors="active")
    told(page, SHOWN)
    page.mouse.move(5, 5)
    pictures = {}
    for layer, head in ((0, 0), (2, 5), (5, 11), (3, 1)):
        box = head_button(page, PADS[name], layer, head).bounding_box()
        clip = {**box, "x": box["x"] - 1, "width": box["width"] + 2}
        picture = np.array(Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("L")).astype(
            int
        )
        assert np.ptp(picture) > 50, f"layer {layer} head {head} is not to be told from its ground"
        pictures[layer, head] = picture
    if name != "ablation":
        chosen = pictures.pop((3, 1))
        assert all(np.abs(chosen - other).max() > 50 for other in pictures.values())


MOST_STOPS = 80
STOP = """() => {
  const node = document.activeElement;
  if (!node || node === document.body) return null;
  const {outlineStyle, outlineWidth, boxShadow} = getComputedStyle(node);
  const box = node.getBoundingClientRect();
  const there = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  return {
    role: node.role ?? node.getAttribute('role') ?? node.localName,
    name: (node.ariaLabel ?? node.labels?.[0]?.innerText ?? node.innerText ?? '').trim(),
    ring: (outlineStyle !== 'none' && parseFloat(outlineWidth) > 0) || boxShadow !== 'none',
    seen: box.width > 0 && box.height > 0 && box.right > 0 && box.left < innerWidth
      && box.bottom > 0 && box.top < innerHeight,
    covered: Boolean(there && !node.contains(there) && !there.contains(node)),
    panel: Boolean(node.closest('[role=tabpanel]')),
  };
}"""
TABS = {
    "All heads": "button",
    "One head": "img",
    "Query and key": "img",
    "Rollout": "img",
    "Ablation": "img",
    "Comparison": "textarea",
    "Why alike?": "textarea",
    "Many texts": "a",
}
"""Views in order, and a kind of element that must be reachable in each."""


def walk(page):
    """Return every stop of the Tab key, from the page's top to its end."""
    page.get_by_role("link", name="Skip to the view").focus()
    stops = [page.evaluate(STOP)]
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        stop = page.evaluate(STOP)
        if stop is None or stop["name"] == stops[0]["name"]:
            return stops
        stops.append(stop)
    raise AssertionError(f"more than {MOST_STOPS} stops: the heads are one stop, with the arrows")


def test_every_view_is_walked_through(visitor):
    page = visitor.open(visitor.state(layer=3, head=1))
    told(page, SHOWN)
    for i, (name, kind) in enumerate(TABS.items()):
        if i:
            turn(page, name, "press")
            told(page, SHOWN)
        stops = walk(page)
        assert [stop for stop in stops if not stop["name"]] == []
        assert [stop for stop in stops if not stop["ring"] or not stop["seen"]] == []
        assert [stop for stop in stops if stop["covered"]] == []
        assert any(stop["role"] == kind for stop in stops if stop["panel"]), name
        names = [stop["name"] for stop in stops]
        for wanted in ("Skip to the view", "Text", tab_of(page, name).inner_text(), "Copy link"):
            assert wanted in names, (name, wanted)
