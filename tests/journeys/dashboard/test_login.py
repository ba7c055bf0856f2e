"""Keys and models in the header: a form for a key, and a switch of models."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from model.artifact.manifest import Artifact
from tests.journeys import conftest
from tests.journeys.conftest import running
from tests.journeys.dashboard import axe
from tests.journeys.dashboard.between import Network, enter_text, told, turn
from tests.journeys.dashboard.browser import VIEWER, Visitor, said
from tests.service.repositories import ADMIN, add

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
        turn(page, "One head")
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


SHOWN = "Layer 1 head 1 shown."


@pytest.fixture
def visitor_of_models(
    browser: Browser,
    exported: Callable[..., Artifact],
    tiny_checkpoint: Path,
    tmp_path: Path,
) -> Iterator[Visitor]:
    """Yield a visitor of a service with a pinned model, an alias, and a model on demand."""
    tiny = exported(tiny_checkpoint, "tiny")
    for name in ("first", "org/second"):
        add(tmp_path, name, tiny)
    key = ADMIN["authorization"].removeprefix("Bearer ")
    with (
        running("--models", str(tmp_path), "--pinned", "first", "--admin-keys", key) as url,
        browser.new_context(**VIEWER) as context,
    ):
        httpx.put(f"{url}/models/prod", json={"target": "first"}, headers=ADMIN)
        visitor = Visitor(context, url)
        yield visitor
        visitor.check()
        visitor.close()


def models(page: Page) -> list[str]:
    """Open the list of models, and return its lines."""
    page.get_by_role("button", name=re.compile("▾$")).click()
    entries = page.get_by_role("list", name="Models").get_by_role("link")
    expect(entries.first).to_be_visible()
    text = page.get_by_role("list", name="Models").inner_text()
    return re.sub(r"[●\s]+", " ", text).strip().split(" org/")


def test_models_are_listed_switched_and_loaded(visitor_of_models: Visitor) -> None:
    visitor = visitor_of_models
    visitor.expected = ("status of 503",)
    page = visitor.open(visitor.state(view="head", layer=1, head=1, a="the cat sat"))
    told(page, SHOWN)
    first, second = models(page)
    assert first == "first version 1: serving prod alias of first"
    assert second == "second loads at its first request version 1: not loaded"
    assert axe.violations(page) == []

    network = Network(page)
    page.get_by_role("link", name="org/second").click()
    expect(page.get_by_text("org/second is not loaded. It is being loaded")).to_be_visible()
    network.asked()
    network.release()
    told(page, SHOWN)
    assert "model=org%2Fsecond#" in page.url
    assert page.url.endswith("a=the+cat+sat&view=head&layer=1&head=1")
    expect(page.get_by_role("button", name="org/second ▾")).to_be_visible()
    expect(page.get_by_text("2 layers × 3 heads")).to_be_visible()
    expect(page.get_by_text("being loaded")).to_be_hidden()

    httpx.delete(f"{visitor.url}/models/org/second", headers=ADMIN).raise_for_status()
    enter_text(page, "the mat")
    expect(page.locator("#facts")).to_contain_text("6 tokens")
    assert models(page)[1].startswith("second version 1: serving")
    page.get_by_role("link", name="prod").click()
    told(page, SHOWN)
    expect(page.get_by_role("button", name="prod ▾")).to_be_visible()
