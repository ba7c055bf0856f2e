"""View of one head, and ablation: the effect and the labels of each control."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.journeys.dashboard.between import (
    Files,
    Network,
    head_button,
    maps,
    told,
    view,
    wait,
)
from tests.journeys.dashboard.oracle import Answer
from tests.service.plain import NAMES as STATISTICS

pytestmark = pytest.mark.e2e
PATH = "{http://www.w3.org/2000/svg}path"
OTHER = "The animal didn't cross the street because it was too wide."


def test_weak_links_of_a_held_token_are_left_out(visitor, animal):
    it = animal.at("it")
    page = visitor.open(visitor.state(view="head", layer=3, head=1, pins=it))
    told(page, "Layer 3 head 1 shown.")
    files, row = Files(page), animal.weights[3, 1, it]
    for least in ("0.02", "0.1", "0.5"):
        page.get_by_role("slider", name="Hide links below").fill(least)
        drawn = ET.fromstring(files.save("SVG")).iter(PATH)
        assert len(list(drawn)) == (row >= float(least)).sum(), least


def test_escape_lets_go(visitor):
    page = visitor.open(visitor.state(view="head", layer=3, head=1))
    told(page, "Layer 3 head 1 shown.")
    for form in maps(page).filter(visible=True).all():
        form.focus()
        for key in ("ArrowDown", "ArrowDown", "Enter"):
            page.keyboard.press(key)
        expect(page).to_have_url(re.compile("pins="))
        page.keyboard.press("Escape")
        expect(page).not_to_have_url(re.compile("pins="))


def test_the_token_stands_apart_in_the_caption(visitor, api):
    text = "What is this?"
    place = Answer(api, text).at("is")
    page = visitor.open(visitor.state(view="head", a=text, pins=place))
    told(page, "Layer 0 head 0 shown.")
    caption = view(page).get_by_role("table").first.get_by_role("caption").first
    expect(caption).to_contain_text("is")
    assert re.search(r"[“‘\"']is[”’\"']", caption.inner_text()), caption.inner_text()


def test_an_arrow_in_the_lines_tells_the_answer(visitor, animal):
    page = visitor.open(visitor.state(view="head", layer=3, head=1))
    told(page, "Layer 3 head 1 shown.")
    maps(page).filter(visible=True).first.focus()
    for place in range(2):
        page.keyboard.press("ArrowDown")
        weights = animal.weights[3, 1, place]
        announced = page.locator("[aria-live=polite]").all_inner_texts()
        best = animal.names[int(weights.argmax())]
        expected = re.compile(rf"{re.escape(best)}\W+{weights.max():.2f}")
        assert any(expected.search(text) for text in announced), announced


def test_enter_on_a_head_keeps_the_place(visitor):
    page = visitor.open()
    told(page, "72 heads drawn.")
    view(page).get_by_role("button", name=re.compile("^Layer 2 head 8")).focus()
    page.keyboard.press("Enter")
    told(page, "Layer 2 head 8 shown.")
    inside = "() => document.querySelector('[role=tabpanel]').contains(document.activeElement)"
    assert page.evaluate(inside), "the focus went to the page's top"


def test_a_difference_of_nothing_has_no_sign(visitor, api, animal):
    other = Answer(api, OTHER)
    gaps = np.array([other.statistics[name] - animal.statistics[name] for name in STATISTICS])
    vanishing = (gaps < -1e-7) & (gaps > -4e-4)
    layer, head = np.unravel_index(vanishing.sum(0).argmax(), vanishing.shape[1:])
    assert vanishing[:, layer, head].any()
    page = visitor.open(visitor.state(view="comparison", layer=layer, head=head))
    told(page, f"Layer {layer} head {head} of both texts shown.")
    cells = view(page).get_by_role("table").first.get_by_role("cell").filter(has_text=".")
    numbers = cells.all_inner_texts()
    assert len(numbers) == 3 * len(STATISTICS)
    assert not [number for number in numbers if re.fullmatch(r"[-−]0\.0+", number)]


def test_nothing_moves_under_the_pointer_at_the_first_head(visitor):
    page = visitor.open(visitor.state(view="ablation"))
    told(page, "Switched off: 0. Layer 0 head 0 shown.")
    button = head_button(page, "Switch heads off", 1, 8)
    before = button.bounding_box()
    button.click()
    told(page, "Switched off: 1.")
    assert button.bounding_box() == before


def test_measuring_each_head_shows_how_far_it_is_and_ends(visitor):
    page = visitor.open(visitor.state(view="ablation", a="Dogs bark."))
    told(page, "Switched off: 0. Layer 0 head 0 shown.")
    network = Network(page)
    page.get_by_role("button", name="Measure each head alone").click()
    for count in range(1, 4):
        network.answer(network.asked(count)[-1])
    network.asked(4)
    progress = page.get_by_role("progressbar")
    expect(progress).to_be_visible()
    share = "(node) => [node.value ?? node.ariaValueNow, node.max ?? node.ariaValueMax].map(Number)"
    wait(page, lambda: progress.evaluate(share)[0] > 0)
    done, most = progress.evaluate(share)
    assert 0 < done < most
    expect(view(page).get_by_text(re.compile(r"about \d+ s left"))).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(progress).to_be_hidden()
    expect(view(page).get_by_text("3 of 72 heads are measured.")).to_be_visible()
    asked = len(network.held)
    network.release()
    expect(page.get_by_role("button", name="Measure each head alone")).to_be_enabled()
    assert asked == 4


def test_a_long_comparison_shows_what_has_come_and_can_be_stopped(visitor):
    """Maps of 300 tokens come in two requests of three layers."""
    page = visitor.open()
    told(page, "72 heads drawn.")
    network = Network(page)
    page.evaluate(f"location.hash = '{visitor.state(view='ablation', a='word ' * 298, off='0.2')}'")
    layers = []
    while layers[-1:] != [[3, 4, 5]]:
        for route in network.held[len(layers) :]:
            layers.append(json.loads(route.request.post_data or "{}").get("layers"))
            if layers[-1] != [3, 4, 5]:
                network.answer(route)
        page.wait_for_timeout(20)
    expect(page.get_by_role("progressbar", name="Heads compared")).to_be_visible()
    expect(view(page).get_by_role("heading", name=re.compile("moved most so far"))).to_be_visible()
    head_button(page, "Show a head", 5, 0).hover()
    expect(view(page).get_by_text("Layer 5 head 0, not compared yet")).to_be_visible()
    view(page).get_by_role("button", name="Stop").click()
    expect(view(page).get_by_text("Stopped after 36 of 72 heads.")).to_be_visible()
    assert len(json.loads(Files(page).save("JSON"))["moved"]) == 36
    network.release()


def test_a_pair_shown_to_a_model_of_single_texts_is_told(visitor):
    page = visitor.open(visitor.state(view="head"))
    told(page, "Layer 0 head 0 shown.")
    note = page.get_by_role("region", name="Input").get_by_text(re.compile("single texts"))
    assert note.count() == 0
    page.get_by_label("Sentence pair").check()
    expect(note).to_be_visible()
