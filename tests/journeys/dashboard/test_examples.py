"""First visit and examples: each opens the view that it is about, and says what to see."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.journeys.dashboard import axe
from tests.journeys.dashboard.between import told, view
from tests.journeys.dashboard.browser import Visitor

pytestmark = pytest.mark.e2e
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
