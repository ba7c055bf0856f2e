"""Service with keys: the page asks for a key in a form, and keeps it in its tab."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.journeys import conftest
from tests.journeys.dashboard import axe
from tests.journeys.dashboard.browser import VIEWER, Visitor, said

pytestmark = pytest.mark.e2e
KEY = "Sesame-99"


@pytest.fixture(scope="module")
def locked(browser: Browser) -> Iterator[str]:
    with conftest.running("--engine", "fake", "--api-keys", f"another,{KEY}") as url:
        yield url


def test_the_key_is_asked_for_in_a_form(browser: Browser, locked: str) -> None:
    with browser.new_context(**VIEWER) as context:
        visitor = Visitor(context, locked)
        visitor.expected = ("status of 401",)
        page = visitor.open()
        expect(page.get_by_role("alert")).to_contain_text("This service wants a key")
        assert page.locator("canvas:visible, #model:not(:empty), .word").count() == 0
        for key in ("guess", KEY):
            page.get_by_label("API key").fill(key)
            page.get_by_label("API key").press("Enter")
            if key != KEY:
                expect(page.get_by_role("alert")).to_contain_text("This key is not known")
                assert axe.violations(page) == []
        said(page, "72 heads drawn.")
        expect(page.get_by_role("alert")).to_be_hidden()
        expect(page.locator("#model")).to_contain_text("6 layers")
        expect(page.get_by_role("tabpanel")).to_be_focused()
        page.get_by_role("button", name="API").click()
        expect(page.get_by_text("enter the API key as the password")).to_be_visible()
        page.keyboard.press("Escape")
        page.get_by_role("tab", name="One head").click()
        said(page, "Layer 0 head 0 shown.")
        page.reload()
        said(page, "Layer 0 head 0 shown.")
        asked = [reply.headers.get("www-authenticate", "") for reply in visitor.replies]
        assert not [value for value in asked if value.lower().startswith("basic")], "a bare dialog"
        visitor.check()
        visitor.close()


def test_a_key_is_tried_while_another_is_still_being_tried(browser: Browser, locked: str) -> None:
    def answered(route: Route) -> None:
        if not route.request.headers.get("authorization", "").endswith("guess"):
            route.continue_()

    with browser.new_context(**VIEWER) as context:
        visitor = Visitor(context, locked)
        visitor.expected = ("status of 401",)
        page = visitor.open()
        page.get_by_label("API key").wait_for()
        page.route("**", answered)
        for key in ("guess", KEY):
            expect(page.get_by_role("alert")).to_contain_text("This service wants a key")
            page.get_by_label("API key").fill(key)
            page.get_by_label("API key").press("Enter")
        said(page, "72 heads drawn.")
        expect(page.get_by_role("alert")).to_be_hidden()
        visitor.check()
        visitor.close()
