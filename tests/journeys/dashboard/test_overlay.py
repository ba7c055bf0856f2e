"""Overlaid heads: each has its own colour, and all of its links are drawn."""

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
)
from tests.journeys.dashboard.browser import Visitor
from tests.journeys.dashboard.oracle import FIRST_TEXT, Answer
from tests.journeys.dashboard.test_accessibility import WIDTHS, everywhere

pytestmark = pytest.mark.e2e
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
