"""Keyboard navigation of every view: each stop is visible, named and usable."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.journeys.dashboard.between import told

pytestmark = pytest.mark.e2e
SHOWN = re.compile(r"(drawn|shown|explained)\.")
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
            page.get_by_role("tab", name=list(TABS)[i - 1]).focus()
            page.keyboard.press("ArrowRight")
            expect(page.get_by_role("tab", name=name)).to_be_focused()
            told(page, SHOWN)
        stops = walk(page)
        assert [stop for stop in stops if not stop["name"]] == []
        assert [stop for stop in stops if not stop["ring"] or not stop["seen"]] == []
        assert [stop for stop in stops if stop["covered"]] == []
        assert any(stop["role"] == kind for stop in stops if stop["panel"]), name
        names = [stop["name"] for stop in stops]
        for wanted in ("Skip to the view", "Text", name, "Copy link"):
            assert wanted in names, (name, wanted)
