"""Pairs and values are found by pointing, by keys and by tap."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.journeys.dashboard.between import (
    LINK,
    cell_at,
    head_button,
    maps,
    pointed_at,
    told,
    turn,
    view,
)
from tests.journeys.dashboard.browser import Visitor
from tests.journeys.dashboard.oracle import Answer, ranked

pytestmark = pytest.mark.e2e
LONG = " ".join(str(i) for i in range(100, 258))
MOST_OPTIONS = 100


def finder(page):
    """Return the finder, which ranks heads by a link."""
    return page.get_by_role("region", name="Find heads by a link")


def expect_ranking(page, animal, row, column):
    """Expect the heads that link two tokens, the best first."""
    best = ranked(animal.weights[:, :, row, column])[0]
    chip = finder(page).get_by_role("listitem").get_by_role("button").first
    names = re.escape(animal.names[row]), re.escape(animal.names[column])
    expect(chip).to_have_accessible_name(re.compile(rf"{names[0]} to {names[1]}"))
    expect(chip).to_have_text(re.compile(rf"^{best}\s"))


def test_it_is_no_list_of_hundreds(visitor):
    page = visitor.open(visitor.state(view="head", a=LONG, **{"from": 3, "to": 4}))
    told(page, "Layer 0 head 0 shown.")
    expect(finder(page).get_by_role("listitem")).to_have_count(8)
    for one in page.get_by_role("combobox").all():
        assert one.get_by_role("option").count() <= MOST_OPTIONS


def test_two_words_are_clicked(visitor, animal):
    page = visitor.open(visitor.state(view="head"))
    told(page, "Layer 0 head 0 shown.")
    finder(page).get_by_role("button", name="Choose words").click()
    for name in ("tired", "street"):
        finder(page).get_by_role("button", name=re.compile(rf"^{name}\b")).click()
    expect_ranking(page, animal, animal.at("tired"), animal.at("street"))
    expect(page).to_have_url(re.compile(rf"from={animal.at('tired')}.*to={animal.at('street')}"))


def test_a_cell_is_clicked(visitor, animal):
    page = visitor.open(visitor.state(view="head", layer=3, head=1))
    told(page, "Layer 3 head 1 shown.")
    heatmap = maps(page).filter(visible=True).last
    heatmap.scroll_into_view_if_needed()
    row, column = animal.at("tired"), animal.at("street")
    page.mouse.click(*cell_at(page, heatmap, animal.names, row, column))
    expect_ranking(page, animal, row, column)
    page.mouse.dblclick(*cell_at(page, heatmap, animal.names, row - 3, column + 2))
    expect(page).to_have_url(re.compile(f"from={row}&to={column}&pins={row}&zoom=2"))


def test_a_cell_is_chosen_by_keys(visitor, animal):
    page = visitor.open(visitor.state(view="head", layer=3, head=1))
    told(page, "Layer 3 head 1 shown.")
    heatmap = maps(page).filter(visible=True).last
    heatmap.focus()
    for key in ["ArrowDown"] * 3 + ["ArrowRight"] * 4:
        page.keyboard.press(key)
    names = pointed_at(page)
    page.keyboard.press("Enter")
    expect_ranking(page, animal, *map(animal.names.index, names))


def test_a_row_of_the_table_is_clicked(visitor, animal):
    page = visitor.open(visitor.state(view="head", layer=2, head=8))
    told(page, "Layer 2 head 8 shown.")
    row = view(page).get_by_role("row").nth(3)
    names = row.get_by_role("cell").all_inner_texts()[:2]
    row.click()
    expect_ranking(page, animal, *(animal.names.index(name) for name in names))


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

    turn(page, "Query and key", "tap")
    told(page, re.compile("^Query of"))
    tap_middle(page, 0)
    expect(view(page).get_by_text(re.compile(r"^Feature \d+: query -?\d"))).to_be_visible()

    turn(page, "Ablation", "tap")
    told(page, re.compile("^Switched off: 0"))
    head_button(page, "Show a head", 2, 8).tap()
    expect(view(page).get_by_text("Layer 2 head 8, moved 0.000")).to_be_visible()
    tap_middle(page, 2)
    expect(view(page).get_by_text(re.compile(r"Difference.*→.*0\.0000"))).to_be_visible()
