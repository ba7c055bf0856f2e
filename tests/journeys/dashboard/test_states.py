"""Between a request and its reply or an error no old result passes as the new one."""

from __future__ import annotations

import contextlib
import json
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.journeys.dashboard.between import (
    REFUSED,
    SHOWN,
    Files,
    Network,
    enter_text,
    failing,
    head_button,
    is_marked_old,
    maps,
    seen,
    told,
    turn,
    view,
    wait,
)
from tests.journeys.dashboard.oracle import FIRST_TEXT, label

pytestmark = pytest.mark.e2e
KINDS = ("JSON", "SVG", "PNG")
LONG = " ".join(f"{word} {i}" for i in range(65) for word in ("the", "dog"))
"""Text long enough for the finder to send a request for each link."""


def test_heading_statistics_map_and_files_are_of_one_head(visitor, animal):
    page = visitor.open(visitor.state(view="head", layer=2, head=0))
    told(page, "Layer 2 head 0 shown.")
    files, network = Files(page), Network(page)
    head_button(page, "Heads", 2, 8).click()
    network.asked()
    heading = view(page).get_by_role("heading", name=re.compile("Layer")).first
    layer, head = map(int, re.findall(r"\d+", heading.inner_text()))
    for one in seen(maps(page)):
        assert f"Layer {layer} head {head}" in (one.get_attribute("aria-label") or "")
        assert is_marked_old(one)
    for value in seen(view(page).get_by_role("definition"))[:1]:
        entropy = animal.statistics["entropy"][layer, head]
        assert float(value.inner_text()) == pytest.approx(entropy, abs=6e-4)
        assert label(animal, layer, head) in view(page).inner_text()
    files.try_to_save(*KINDS)
    network.release()
    told(page, "Layer 2 head 8 shown.")
    expect(heading).to_have_text("Layer 2 · Head 8")
    meanwhile = files.contents()
    after = {f"headscope-layer-2-head-8.{kind.lower()}": files.save(kind) for kind in KINDS}
    for name, content in meanwhile:
        assert content == after.get(name, content), f"{name} is not what it says"
    found = json.loads(after["headscope-layer-2-head-8.json"])
    assert (found["layer"], found["head"]) == (2, 8)
    np.testing.assert_allclose(found["weights"], animal.weights[2, 8], atol=1e-6)


def test_the_finder_ranks_for_the_question_that_it_shows(visitor):
    page = visitor.open(visitor.state(view="head", a=LONG, **{"from": 3, "to": 4}))
    told(page, "Layer 0 head 0 shown.")
    finder = page.get_by_role("region", name="Find heads by a link")
    chips = finder.get_by_role("listitem").get_by_role("button")
    expect(chips).to_have_count(8)
    before = chips.all_inner_texts()
    network = Network(page)
    address = visitor.state(view="head", a=LONG, **{"from": 5, "to": 1})
    page.goto(f"{visitor.url}/{address}")
    wait(page, lambda: network.held or chips.all_inner_texts() != before)
    if chips.all_inner_texts() == before:
        for chip in seen(chips):
            assert is_marked_old(chip), "a ranking of another question stands under this one"
            expect(chip).to_be_disabled()
    network.release()
    wait(page, lambda: chips.all_inner_texts() != before)
    expect(chips).to_have_count(8)
    wait(page, lambda: not is_marked_old(chips.first))


def test_answers_out_of_order(visitor, animal):
    page = visitor.open(visitor.state(view="head", layer=2, head=0))
    told(page, "Layer 2 head 0 shown.")
    network = Network(page)
    for count, head in enumerate((4, 8, 1), start=1):
        head_button(page, "Heads", 2, head).click()
        network.asked(count)
    for route in reversed(network.held):
        network.answer(route)
    told(page, "Layer 2 head 1 shown.")
    expect(view(page).get_by_role("heading", name="Layer 2 · Head 1")).to_be_visible()
    network.release()
    found = json.loads(Files(page).save("JSON"))
    np.testing.assert_allclose(found["weights"], animal.weights[2, 1], atol=1e-6)


def save_at_every_moment(files, network, status):
    """Try to save before each reply, until the page reports that everything is shown."""
    network.asked()
    done = network.page.get_by_role("status").filter(has_text=status)
    answered = 0
    while answered < len(network.held):
        files.try_to_save("JSON")
        network.answer(network.held[answered])
        answered += 1
        wait(network.page, lambda answered=answered: len(network.held) > answered or done.count())
    files.try_to_save("JSON")


def test_in_every_view_an_old_text_is_dim_and_never_saved_as_the_new(visitor):
    """What is saved at any moment is what is saved at the end."""
    page = visitor.open(visitor.state(layer=3, head=1))
    for i, (tab, status) in enumerate(SHOWN.items()):
        turn(page, tab)
        told(page, status)
        files, network = Files(page), Network(page)
        enter_text(page, f"Text number {i}.")
        network.asked()
        old = seen(maps(page)) + seen(
            view(page).get_by_role("button", name=re.compile("^Layer 3 head 1,"))
        )
        old += seen(page.get_by_text(re.compile(r"^\d+ tokens")))
        for one in old:
            assert is_marked_old(one), f"{tab}: {one.evaluate('(node) => node.outerHTML')[:200]}"
        save_at_every_moment(files, network, status)
        network.release()
        assert not is_marked_old(view(page))
        last = json.loads(files.save("JSON"))
        assert last["texts"] == [f"Text number {i}."]
        for _, content in files.contents():
            assert json.loads(content) == last, tab


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
