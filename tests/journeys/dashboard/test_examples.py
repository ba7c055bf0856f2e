"""Example texts: a click submits each one together with its second text."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.journeys.dashboard import axe
from tests.journeys.dashboard.browser import Visitor

pytestmark = pytest.mark.e2e


def test_an_example_is_asked_with_its_other_text(visitor: Visitor) -> None:
    page = visitor.open(visitor.state(a="Where?", b="Here.", view="comparison", pins=1))
    examples = page.get_by_role("group", name="Examples")
    expect(examples.get_by_role("button")).to_have_count(6)
    examples.get_by_role("button", name="Negation").click()
    expect(page.get_by_label("Text", exact=True)).to_have_value("The film was good.")
    expect(page.get_by_label("Other text", exact=True)).to_have_value("The film was not good.")
    expect(page.locator("#facts")).to_contain_text("7 tokens")
    expect(page.get_by_label("Sentence pair")).not_to_be_checked()
    expect(page).not_to_have_url(re.compile("pins"))
    expect(page.locator("#panel")).to_have_attribute("aria-busy", "false")
    assert axe.violations(page) == []
    page.go_back()
    expect(page.get_by_label("First text of the pair")).to_have_value("Where?")
