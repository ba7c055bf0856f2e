"""After an error old results are marked, the alert is in place, and recovery clears it."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
from playwright.sync_api import expect

from tests.journeys.dashboard.between import (
    REFUSED,
    Files,
    enter_text,
    failing,
    head_button,
    is_marked_old,
    maps,
    seen,
    told,
    view,
    wait,
)
from tests.journeys.dashboard.oracle import FIRST_TEXT

pytestmark = pytest.mark.e2e
REASONS = {"refused": 0, "broken": 500, "too long": 422}
FACTS = re.compile(r"\b16 tokens\b")
HEAD = re.compile(r"^Layer \d+ head \d+")


@contextlib.contextmanager
def spoiled(page, reason):
    """Submit a text whose request fails for a reason during the block."""
    broken = contextlib.nullcontext()
    if reason != "too long":
        broken = failing(page, status=REASONS[reason])
    with broken:
        enter_text(page, "word " * 2000 if reason == "too long" else "Another text.")
        expect(page.get_by_role("alert")).to_be_visible()
        yield


def pass_time(page, place):
    """Run the page's clock, faster than the machine's, until an element is visible."""

    def is_there():
        page.clock.run_for(1_000)
        return place.is_visible()

    wait(page, is_there)


def test_after_an_error_no_old_head_is_shown_as_the_new(visitor):
    visitor.expected = (REFUSED, "status of 422", "status of 500")
    page = visitor.open()
    for reason in REASONS:
        enter_text(page, FIRST_TEXT)
        expect(page.get_by_text(FACTS)).to_be_visible()
        told(page, "72 heads drawn.")
        with spoiled(page, reason):
            old = seen(view(page).get_by_role("button", name=HEAD))
            old += seen(page.get_by_role("listitem").get_by_role("button", name=HEAD))
            old += seen(page.get_by_text(FACTS))
            for one in old:
                assert is_marked_old(one), one.evaluate("(node) => node.outerHTML")[:200]


def test_after_an_error_nothing_old_is_saved_as_the_new(visitor):
    visitor.expected = (REFUSED,)
    page = visitor.open()
    told(page, "72 heads drawn.")
    files = Files(page)
    with spoiled(page, "refused"):
        files.try_to_save("JSON")
    page.reload()
    told(page, "72 heads drawn.")
    text = page.get_by_role("textbox", name="Text", exact=True).input_value()
    for _, content in [*files.contents(), ("now", files.save("JSON"))]:
        assert json.loads(content)["texts"] == [text]


def test_after_an_error_of_one_head_no_other_stands_under_its_name(visitor):
    visitor.expected = ("status of 500",)
    page = visitor.open(visitor.state(view="head", layer=2, head=0))
    told(page, "Layer 2 head 0 shown.")
    with failing(page, status=500):
        head_button(page, "Heads", 2, 8).click()
        expect(page.get_by_role("alert")).to_be_visible()
        heading = view(page).get_by_role("heading", name=re.compile("Layer")).first.inner_text()
        for one in seen(maps(page)):
            name = one.get_attribute("aria-label") or ""
            assert re.findall(r"\d+", name)[:2] == re.findall(r"\d+", heading)
        assert not seen(maps(page)) or "Head 0" in heading


def test_an_error_of_the_other_text_stands_by_its_box(visitor):
    visitor.expected = ("status of 422",)
    page = visitor.open(visitor.state(view="comparison"))
    told(page, "Layer 0 head 0 of both texts shown.")
    enter_text(page, "word " * 600, name="Other text")
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_role("region", name="Input").get_by_role("alert")).to_be_hidden()
    expect(view(page).get_by_role("alert")).to_contain_text("602 tokens")


def test_when_the_service_is_back_the_page_is_too(visitor):
    visitor.expected = (REFUSED,)
    page = visitor.open(visitor.state(view="head"))
    told(page, "Layer 0 head 0 shown.")
    page.clock.install()
    with failing(page, "**/*"):
        enter_text(page, "Another text.")
        expect(page.get_by_role("alert")).to_contain_text("The service does not answer.")
        page.clock.run_for(30_000)
        expect(page.get_by_role("alert")).to_be_visible()
    pass_time(page, page.get_by_text(re.compile(r"\b5 tokens\b")))
    expect(page.get_by_role("alert")).to_be_hidden()


def test_when_the_service_is_back_so_is_a_view_of_two_texts(visitor):
    visitor.expected = (REFUSED,)
    page = visitor.open(visitor.state(view="comparison"))
    told(page, "both texts shown.")
    page.clock.install()
    with failing(page, "**/*"):
        enter_text(page, "The second text.", name="Other text")
        expect(view(page).get_by_role("alert")).to_be_visible()
    pass_time(page, maps(page).first)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_page_opened_while_the_service_is_away_comes_by_itself(visitor):
    visitor.expected = (REFUSED,)
    page = visitor.open(visitor.state(view="head"))
    page.clock.install()
    with failing(page, "**/attention"), failing(page, "**/info"):
        page.reload()
        expect(page.get_by_role("alert")).to_be_visible()
    pass_time(page, maps(page).first)
    pass_time(page, page.get_by_text("6 layers × 12 heads"))
