"""Values by tap: in heatmaps, bars and grids of heads; a tap changes nothing by itself."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.journeys.dashboard.between import LINK, head_button, maps, told, view
from tests.journeys.dashboard.browser import Visitor
from tests.journeys.dashboard.oracle import Answer

pytestmark = pytest.mark.e2e


def tap_middle(page: Page, nth: int) -> None:
    """Tap the middle of a map."""
    drawing = maps(page).filter(visible=True).nth(nth)
    drawing.scroll_into_view_if_needed()
    box = drawing.bounding_box()
    assert box is not None
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def test_values_are_read_by_tap(visitor: Visitor, animal: Answer) -> None:
    page = visitor.open(visitor.state(view="head", layer=3, head=1), has_touch=True)
    told(page, "Layer 3 head 1 shown.")
    before = page.url
    tap_middle(page, 1)
    shown = view(page).get_by_text(LINK).first
    expect(shown).to_be_visible()
    found = LINK.match(shown.inner_text())
    assert found is not None
    row, column = (animal.names.index(name) for name in found.groups())
    assert f"{animal.weights[3, 1, row, column]:.4f}" in shown.inner_text()
    assert page.url == before
    view(page).get_by_role("button", name="Choose this pair").tap()
    expect(page).to_have_url(re.compile(rf"from={row}&to={column}"))

    page.get_by_role("tab", name="Query and key").tap()
    told(page, re.compile("^Query of"))
    tap_middle(page, 0)
    expect(view(page).get_by_text(re.compile(r"^Feature \d+: query -?\d"))).to_be_visible()

    page.get_by_role("tab", name="Ablation").tap()
    told(page, re.compile("^Switched off: 0"))
    head_button(page, "Show a head", 2, 8).tap()
    expect(view(page).get_by_text("Layer 2 head 8, moved 0.000")).to_be_visible()
    tap_middle(page, 2)
    expect(view(page).get_by_text(re.compile(r"Difference.*→.*0\.0000"))).to_be_visible()
