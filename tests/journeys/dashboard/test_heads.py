"""View of one head, overlaid heads, and ablation: the effect and the labels of each control."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.journeys.dashboard.between import (
    Files,
    Network,
    head_button,
    is_marked_old,
    maps,
    seen,
    told,
    view,
    wait,
)
from tests.journeys.dashboard.browser import Visitor
from tests.journeys.dashboard.oracle import FIRST_TEXT, Answer
from tests.journeys.dashboard.test_accessibility import WIDTHS, everywhere
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


SVG = "{http://www.w3.org/2000/svg}"
KEPT = ((3, 1), (2, 8))


def group(page: Page) -> Locator:
    """Return the group that lists the overlaid heads."""
    return view(page).get_by_role("group", name="Overlaid heads")


def keep(page: Page) -> Locator:
    """Return the button that keeps the shown head."""
    return group(page).get_by_role("button", name="Pin this head to compare")


def strokes(root: ET.Element) -> dict[str, str]:
    """Return the colour of each head's line in the legend of a file."""
    names = {float(node.get("y", "")): node.text or "" for node in root.iter(f"{SVG}text")}
    samples = [node for node in root.iter(f"{SVG}line") if node.get("x1") == "0"]
    found = {names.get(float(node.get("y1", "")), ""): node.get("stroke", "") for node in samples}
    return {name: colour for name, colour in found.items() if name.startswith("Layer")}


def test_heads_are_kept_and_drawn_together(visitor: Visitor, animal: Answer) -> None:
    layer, head = 5, 11
    page = visitor.open(visitor.state(view="head", layer=KEPT[0][0], head=KEPT[0][1]))
    told(page, "Layer 3 head 1 shown.")
    keep(page).click()
    expect(keep(page)).to_have_attribute("aria-pressed", "true")
    for kept in (KEPT[1], (layer, head)):
        head_button(page, "Heads", *kept).click()
        told(page, re.compile("Layer {} head {} shown, with".format(*kept)))
        if kept in KEPT:
            keep(page).click()
    expect(group(page).get_by_role("button").filter(has_text="Layer")).to_have_count(2)

    page.reload()
    told(page, f"Layer {layer} head {head} shown, with 2 overlaid.")
    files = Files(page)
    found = json.loads(files.save("JSON"))
    np.testing.assert_allclose(found["weights"], animal.weights[layer, head], atol=1e-6)
    for (at, n), one in zip(KEPT, found["overlaid"], strict=True):
        assert one["name"] == f"Layer {at} head {n}"
        np.testing.assert_allclose(one["weights"], animal.weights[at, n], atol=1e-6)

    root = ET.fromstring(files.save("SVG"))
    colours = strokes(root)
    every = (*KEPT, (layer, head))
    assert set(colours) == {f"Layer {at} head {n}" for at, n in every}
    assert len(set(colours.values())) == 3
    drawn = Counter(path.get("stroke") for path in root.iter(f"{SVG}path"))
    expected = {
        colours[f"Layer {at} head {n}"]: int((animal.weights[at, n] >= 0.02).sum())
        for at, n in every
    }
    assert drawn == expected

    weights = np.array([animal.weights[at, n] for at, n in every])
    strongest = max(float(path.get("stroke-width", "0")) for path in root.iter(f"{SVG}path"))
    assert strongest == pytest.approx(0.6 + 2.6), "the heaviest link of all of them"
    own = [p for p in root.iter(f"{SVG}path") if p.get("stroke") == colours["Layer 5 head 11"]]
    widest = max(float(path.get("stroke-width", "0")) for path in own)
    assert widest == pytest.approx(0.6 + 2.6 * weights[2].max() / weights.max(), abs=0.01)

    group(page).get_by_role("button", name="Layer 3 head 1").click()
    told(page, f"Layer {layer} head {head} shown, with 1 overlaid.")
    expect(page).to_have_url(re.compile(r"overlaid=2\.8(&|$)"))


def test_what_each_head_gives_a_held_token_to_look_at(visitor: Visitor, animal: Answer) -> None:
    it = animal.at("it")
    page = visitor.open(visitor.state(view="head", layer=5, head=11, overlaid="3.1", pins=it))
    told(page, "Layer 5 head 11 shown, with 1 overlaid.")
    root = ET.fromstring(Files(page).save("SVG"))
    colours = strokes(root)
    for (layer, head), name in (((5, 11), "Layer 5 head 11"), ((3, 1), "Layer 3 head 1")):
        row = animal.weights[layer, head, it]
        boxes = [
            float(box.get("fill-opacity", "1"))
            for box in root.iter(f"{SVG}rect")
            if box.get("fill") == colours[name] and box.get("fill-opacity") != "0.16"
        ]
        np.testing.assert_allclose(boxes, np.minimum(row[row > 0.004], 0.6), atol=1e-3)
        lines = [p for p in root.iter(f"{SVG}path") if p.get("stroke") == colours[name]]
        assert len(lines) == (row >= 0.02).sum()


def test_norms_are_overlaid_as_norms(visitor: Visitor, api: Any) -> None:
    asked = {"inputs": FIRST_TEXT, "include": ["norms"], "layers": [3], "heads": [1]}
    [expected] = api.post("/attention", json=asked).json()["results"]
    page = visitor.open(
        visitor.state(view="head", layer=5, head=11, overlaid="3.1", measure="norms")
    )
    told(page, "Layer 5 head 11 norms shown, with 1 overlaid.")
    [one] = json.loads(Files(page).save("JSON"))["overlaid"]
    np.testing.assert_allclose(one["norms"], expected["norms"][0][0], rtol=1e-5)


def test_heads_that_are_not_there_yet(visitor: Visitor, animal: Answer) -> None:
    """While requests are held, the drawing is dimmed, and files name only the heads they show."""
    page = visitor.open(visitor.state(view="head", layer=3, head=1, overlaid="2.8"))
    told(page, "Layer 3 head 1 shown, with 1 overlaid.")
    files, network = Files(page), Network(page)
    head_button(page, "Heads", 4, 4).click()
    network.asked()
    assert all(is_marked_old(one) for one in seen(maps(page)))
    files.try_to_save("JSON")
    network.release()
    told(page, "Layer 4 head 4 shown, with 1 overlaid.")
    for content in [*(content for _, content in files.contents()), files.save("JSON")]:
        saved = json.loads(content)
        np.testing.assert_allclose(
            saved["weights"], animal.weights[saved["layer"], saved["head"]], atol=1e-6
        )
        np.testing.assert_allclose(saved["overlaid"][0]["weights"], animal.weights[2, 8], atol=1e-6)


def test_at_most_five_and_none_that_the_model_lacks(visitor: Visitor) -> None:
    page = visitor.open(visitor.state(view="head", layer=3, head=1, overlaid="9.9,0.0,0.1,0.2,0.3"))
    told(page, "Layer 3 head 1 shown, with 4 overlaid.")
    keep(page).click()
    expect(page).to_have_url(re.compile(r"overlaid=0\.0%2C0\.1%2C0\.2%2C0\.3%2C3\.1"))
    head_button(page, "Heads", 4, 4).click()
    told(page, "Layer 4 head 4 shown, with 5 overlaid.")
    expect(keep(page)).to_be_disabled()
    assert not (violations := everywhere(page, WIDTHS)), sorted(violations)
