"""Views of the dashboard in a real Chromium, against the API's own numbers."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from playwright.sync_api import Page, expect

from tests.journeys.dashboard import axe
from tests.journeys.dashboard.between import cell_at, set_option, turn
from tests.journeys.dashboard.browser import Visitor, rows_of, said
from tests.journeys.dashboard.oracle import FIRST_TEXT, Answer, label, merged, ranked
from tests.journeys.dashboard.test_use import saved
from tests.service.plain import NAMES as STATISTICS

pytestmark = pytest.mark.e2e


def thumbnails(page: Page) -> list[str]:
    """Return the layer and head of each thumbnail, in the order shown."""
    return [name.split()[0] for name in page.locator(".thumbnail-name").all_inner_texts()]


def expect_best(page: Page, links: NDArray[Any], place: str = "#finder .chip") -> None:
    """Expect the first head of a ranking to be the best of `[L, N]`, with its weight."""
    first = page.locator(place).first
    expect(first).to_have_text(re.compile(rf"^{ranked(links)[0]}\s"))
    assert float(first.inner_text().split()[1]) == pytest.approx(links.max(), abs=1e-3)


def test_it_opens_with_the_head_that_links_it_to_animal(visitor, animal):
    page = visitor.open()
    chips = page.locator("#finder .chip")
    expect(chips).to_have_count(8)
    links = animal.weights[:, :, animal.at("it"), animal.at("animal")]
    shown = [text.split() for text in chips.all_inner_texts()]
    assert [name for name, _ in shown] == ranked(links)[:8]
    np.testing.assert_allclose(
        [float(weight) for _, weight in shown], np.sort(links.ravel())[::-1][:8], atol=1e-3
    )
    chips.first.click()
    expect(page.locator("h2").filter(has_text="Layer")).to_have_text("Layer 3 · Head 1")
    expect(page.locator(".links caption")).to_have_text("What “it” looks at")
    assert rows_of(page, ".links")[0] == ["it", "animal", f"{links[3, 1]:.4f}"]
    assert "view=head" in page.url


def test_another_pair_of_tokens_is_searched(visitor, animal):
    page = visitor.open()
    page.get_by_label("From token").select_option(label="tired")
    page.get_by_label("To token").select_option(label="the (2)")
    links = animal.weights[:, :, animal.at("tired"), 7]
    expect_best(page, links)
    page.get_by_label("Sort by").select_option(value="link")
    expect(page.locator(".thumbnail-name").first).to_have_text(re.compile(r"0\.\d"))
    assert thumbnails(page)[:10] == ranked(links)[:10]


def test_thumbnails_are_the_maps(visitor, animal):
    page = visitor.open()
    said(page, "72 heads drawn.")
    pixels = page.evaluate(
        """() => [...document.querySelectorAll('.thumbnail canvas')].map((canvas) => [canvas.width,
             ...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data])"""
    )
    size = len(animal.tokens)
    assert len(pixels) == 72
    for place, (width, *colours) in enumerate(pixels):
        assert width == size
        light = np.reshape(colours, (size * size, 4))[:, :3].sum(1)
        weights = animal.weights.reshape(72, -1)[place]
        order = np.argsort(weights)
        assert np.diff(light[order]).max() <= 2, "a larger weight is never lighter"
        assert light[order[-1]] < light[order[0]]
        assert np.corrcoef(light, np.sqrt(weights))[0, 1] < -0.97
    page.get_by_role("textbox", name="Text", exact=True).fill("Dogs bark.")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.thumbnail canvas')].every((c) => c.width === 5)"
    )


def test_sorted_by_any_statistic(visitor, animal):
    page = visitor.open()
    expect(page.locator(".thumbnail")).to_have_count(72)
    for name in STATISTICS:
        page.get_by_label("Sort by").select_option(value=name)
        assert f"sort={name}" in page.url
        values = animal.statistics[name]
        assert thumbnails(page) == ranked(values)
        texts = page.locator(".thumbnail-name").all_inner_texts()
        shown = [float(text.split()[1]) for text in texts]
        np.testing.assert_allclose(shown, np.sort(values.ravel())[::-1], rtol=0.006, atol=1e-9)
    page.get_by_role("button", name="largest first").click()
    expect(page.get_by_role("button", name="smallest first")).to_be_visible()
    assert thumbnails(page) == ranked(-values)


def test_labels(visitor, animal):
    page = visitor.open()
    expect(page.locator(".thumbnail")).to_have_count(72)
    shown = page.locator(".thumbnail-label").all_inner_texts()
    assert shown == [label(animal, layer, head) for layer in range(6) for head in range(12)]
    assert {"previous token", "next token", "[CLS] sink", "broad", ""} <= set(shown)
    page.get_by_label("Sort by").select_option(value="label")
    sorted_labels = page.locator(".thumbnail-label").all_inner_texts()
    assert sorted_labels[0] == "previous token"
    assert sorted_labels[-1] == ""


def test_one_head(visitor, animal):
    page = visitor.open(visitor.state(view="head", layer=2, head=8))
    said(page, "Layer 2 head 8 shown.")
    for name in STATISTICS:
        shown = page.locator(f"[data-statistic={name}]").inner_text()
        assert float(shown) == pytest.approx(animal.statistics[name][2, 8], abs=6e-4)
    weights = animal.weights[2, 8]
    strongest = np.argsort(-weights.ravel(), kind="stable")[:10]
    for row, place in zip(rows_of(page, ".links"), strongest, strict=True):
        query, key = divmod(int(place), len(weights))
        assert row[:2] == [animal.names[query], animal.names[key]]
        assert float(row[2]) == pytest.approx(weights[query, key], abs=6e-5)


def test_pointing_at_a_cell_names_its_weight(visitor, animal):
    page = visitor.open(visitor.state(view="head", layer=3, head=1))
    said(page, "Layer 3 head 1 shown.")
    heatmap = page.locator(".mapview .heatmap canvas")
    heatmap.scroll_into_view_if_needed()
    for row, column in [(0, 0), (10, 2), (15, 15), (3, 6)]:
        page.mouse.move(*cell_at(page, heatmap, animal.names, row, column))
        says = f"{animal.names[row]} → {animal.names[column]}  "
        expect(page.locator(".mapview .readout")).to_have_text(
            says + f"{animal.weights[3, 1, row, column]:.4f}"
        )


def test_pointing_at_a_token_isolates_it(visitor, animal):
    page = visitor.open(visitor.state(view="head", layer=3, head=1))
    said(page, "Layer 3 head 1 shown.")
    canvas = page.locator(".lines canvas")
    box = canvas.bounding_box()
    row = box["height"] / len(animal.tokens)
    page.mouse.move(box["x"] + 40, box["y"] + (animal.at("it") + 0.5) * row)
    expect(page.locator(".links caption")).to_have_text("What “it” looks at")
    seen = animal.weights[3, 1, animal.at("it")]
    assert [r[1] for r in rows_of(page, ".links")] == [
        animal.names[i] for i in np.argsort(-seen, kind="stable")[:10]
    ]
    page.mouse.move(box["x"] + box["width"] - 40, box["y"] + (animal.at("animal") + 0.5) * row)
    expect(page.locator(".links caption")).to_have_text("Who looks at “animal”")
    looking = animal.weights[3, 1, :, animal.at("animal")]
    assert [r[0] for r in rows_of(page, ".links")] == [
        animal.names[i] for i in np.argsort(-looking, kind="stable")[:10]
    ]
    for token in ("it", "cross"):
        page.mouse.click(box["x"] + 40, box["y"] + (animal.at(token) + 0.5) * row)
    page.mouse.move(5, 5)
    expect(page).to_have_url(re.compile(f"pins={animal.at('it')}%2C{animal.at('cross')}"))
    expect(page.locator(".links caption")).to_have_text("What “cross” looks at")
    page.mouse.click(box["x"] + 40, box["y"] + (animal.at("cross") + 0.5) * row)
    page.mouse.move(5, 5)
    expect(page.locator(".links caption")).to_have_text("What “it” looks at")


def test_heads_switched_off(visitor, api, animal):
    page = visitor.open(visitor.state(view="ablation", layer=3, head=1))
    said(page, "Switched off: 0. Layer 3 head 1 shown.")
    for name in ("Layer 0 head 2, on", "Layer 1 head 8, on"):
        page.get_by_role("group", name="Switch heads off").get_by_label(name).click()
    off = [{"layer": 0, "head": 2}, {"layer": 1, "head": 8}]
    ablated = Answer(api, ablate=off)
    moved = 0.5 * np.abs(animal.weights - ablated.weights).sum(-1).mean(-1)
    most = ranked(moved)[0].replace("·", " head ")
    said(page, f"Switched off: 2. Layer {most} shown.")
    assert ablated.shift > 1e-4
    assert float(page.locator(".figure").inner_text()) == pytest.approx(ablated.shift, rel=0.006)
    expect(page.locator("#ablated")).to_contain_text("2 heads are switched off (0·2, 1·8)")
    pad = page.get_by_role("group", name="Show a head")
    expect(pad.get_by_label("Layer 1 head 0")).not_to_have_attribute(
        "aria-label", re.compile("0.000")
    )
    for layer, head in [(0, 5), (1, 0), (3, 1), (5, 11)]:
        name = pad.locator(f"[data-layer='{layer}'][data-head='{head}']").get_attribute(
            "aria-label"
        )
        assert float(name.split()[-1]) == pytest.approx(moved[layer, head], abs=2e-3)
    pad.locator("[data-layer='3'][data-head='1']").click()
    said(page, "Switched off: 2. Layer 3 head 1 shown.")
    page.locator(".threefold canvas").last.focus()
    for key in ["ArrowDown"] * 11 + ["ArrowRight"] * 2:
        page.keyboard.press(key)
    before, after = animal.weights[3, 1, 10, 2], ablated.weights[3, 1, 10, 2]
    readout = page.locator(".readout")
    expect(readout).to_contain_text(f"Before: it → animal {before:.4f}")
    expect(readout).to_contain_text(f"After: it → animal {after:.4f}")
    difference = float(readout.inner_text().split()[-1])
    assert difference == pytest.approx(after - before, abs=1e-4)
    turn(page, "All heads")
    expect_best(page, ablated.weights[:, :, 10, 2])
    page.locator("#ablated").get_by_role("button", name="Switch all on").click()
    expect(page.locator("#ablated")).to_be_hidden()
    assert "off=" not in page.url


def test_each_head_alone(visitor, api):
    page = visitor.open(visitor.state(view="ablation", a="Dogs bark."))
    page.get_by_role("button", name="Measure each head alone").click()
    said(page, "Each head measured alone.")
    pad = page.get_by_role("group", name="Switch heads off")
    for layer, head in [(0, 2), (5, 3)]:
        shift = Answer(api, "Dogs bark.", ablate=[{"layer": layer, "head": head}]).shift
        name = pad.locator(f"[data-layer='{layer}'][data-head='{head}']").get_attribute(
            "aria-label"
        )
        assert float(name.split()[-1]) == pytest.approx(shift, rel=0.006, abs=1e-7)


def test_a_pair(visitor, api):
    texts = ["Where do cats sleep?", "A cat sleeps anywhere."]
    page = visitor.open(visitor.state(a=texts[0]))
    page.get_by_label("Sentence pair").check()
    page.get_by_label("Second text of the pair").fill(texts[1])
    page.get_by_label("Second text of the pair").press("Enter")
    answer = Answer(api, [texts])
    expect(page.locator("#facts")).to_contain_text(f"{len(answer.tokens)} tokens")
    turn(page, "One head")
    said(page, "Layer 0 head 0 shown.")
    own = np.array([start < end for start, end in answer.offsets])
    groups = [own & (answer.segments == 0), own & (answer.segments == 1), ~own]
    shares = [[answer.weights[0, 0][q][:, k].sum(1).mean() for k in groups] for q in groups[:2]]
    table = rows_of(page, ".quadrants")
    assert [row[0] for row in table] == ["from the first", "from the second"]
    shown = [[float(cell) for cell in row[1:]] for row in table]
    np.testing.assert_allclose(shown, shares, atol=6e-4)
    page.get_by_role("button", name="B → A").click()
    expect(page.locator(".lines canvas")).to_have_attribute("aria-label", re.compile("6 to 7"))
    second, first = answer.segments == 1, answer.segments == 0
    part = answer.weights[0, 0][second][:, first]
    assert float(rows_of(page, ".links")[0][2]) == pytest.approx(part.max(), abs=6e-5)
    turn(page, "All heads")
    page.get_by_label("Sort by").select_option(value="cross")
    crossing = np.zeros((6, 12))
    for query, key in [(0, 1), (1, 0)]:
        shares = answer.weights[:, :, groups[query]][..., groups[key]].sum(-1).mean(-1)
        crossing += shares / 2
    expect_best(page, crossing, ".thumbnail-name")


def test_two_texts_compared(visitor, api, animal):
    page = visitor.open(visitor.state(view="comparison", layer=3, head=1))
    said(page, "Layer 3 head 1 of both texts shown.")
    other = Answer(api, FIRST_TEXT.replace("tired", "wide"))
    for row, name in zip(rows_of(page, ".comparison table"), STATISTICS, strict=True):
        first, second = (answer.statistics[name][3, 1] for answer in (animal, other))
        np.testing.assert_allclose(
            [float(cell) for cell in row[1:]], [first, second, second - first], atol=6e-4
        )
    moved = 0.5 * np.abs(animal.weights - other.weights).sum(-1).mean(-1)
    expect(page.locator(".comparison .chip")).to_have_count(6)
    assert [t.split()[0] for t in page.locator(".comparison .chip").all_inner_texts()] == ranked(
        moved
    )[:6]
    page.get_by_role("textbox", name="Other text").fill("Something else.")
    expect(page.locator("figcaption").filter(has_text="Difference")).to_be_hidden()
    other = Answer(api, "Something else.")
    names = ("confidence", "cls", "sep", "self", "previous", "next")
    gaps = np.mean([np.abs(animal.statistics[n] - other.statistics[n]) for n in names], axis=0)
    expect_best(page, gaps, ".comparison .chip")


def test_word_pieces_are_merged(visitor, api):
    text = "Unbelievably, tokenizers didn't break 🙂 “state-of-the-art” wordpieces."
    answer = Answer(api, text)
    page = visitor.open(visitor.state(a=text, view="head", layer=2, head=4, words=1))
    said(page, "Layer 2 head 4 shown.")
    spaced = text.replace(",", " ,").replace("“", "“ ").replace("”", " ”").replace(".", " .")
    words = ["[CLS]", *spaced.split(), "[SEP]"]
    offered = page.get_by_label("From token").locator("option").all_inner_texts()
    assert offered[1:] == words
    groups: list[list[int]] = []
    for word in words:
        first = groups[-1][-1] + 1 if groups else 0
        start = answer.offsets[first][0]
        groups.append([first])
        if not word.startswith("["):
            while answer.offsets[groups[-1][-1]][1] < start + len(word):
                groups[-1].append(groups[-1][-1] + 1)
    assert sum(map(len, groups)) == len(answer.tokens)
    assert max(map(len, groups)) >= 4
    expected = merged(answer.weights[2, 4], groups)
    strongest = np.argsort(-expected.ravel(), kind="stable")[:10]
    for row, place in zip(rows_of(page, ".links"), strongest, strict=True):
        query, key = divmod(int(place), len(words))
        assert row[:2] == [words[query], words[key]]
        assert float(row[2]) == pytest.approx(expected[query, key], abs=6e-5)
    page.get_by_label("From token").select_option(label="state-of-the-art")
    page.get_by_label("To token").select_option(label="Unbelievably")
    links = np.array([[merged(m, groups)[8, 1] for m in layer] for layer in answer.weights])
    expect_best(page, links)
    set_option(page, "Hide special tokens")
    expect(page.locator(".lines canvas")).to_have_attribute("aria-label", re.compile("11 to 11"))
    inner = expected[1:-1, 1:-1]
    assert float(rows_of(page, ".links")[0][2]) == pytest.approx(inner.max(), abs=6e-5)


TEXT = "A man is playing a guitar."
LAYER, HEAD = 3, 5


def norms(reference: Any, layer: int, head: int) -> Any:
    """Return norms `[S, S]`: a head's weights times the norms of its projected values."""
    tokenizer, model = reference
    attention = model.encoder.layer[layer].attention
    size = model.config.hidden_size // model.config.num_attention_heads
    own = slice(head * size, (head + 1) * size)
    with torch.no_grad():
        told = model(
            **tokenizer(TEXT, return_tensors="pt"),
            output_hidden_states=True,
            output_attentions=True,
        )
        values = attention.self.value(told.hidden_states[layer])[0][:, own]
        added = values @ attention.output.dense.weight[:, own].T
        return (told.attentions[layer][0, head] * added.norm(dim=-1)[None, :]).numpy()


def exported(page: Page) -> dict[str, Any]:
    """Return the content that the page saves as JSON."""
    found: dict[str, Any] = json.loads(saved(page, "JSON")[0])
    return found


def test_norms_of_a_head(visitor: Visitor, transformers_reference: Any) -> None:
    expected = norms(transformers_reference, LAYER, HEAD)
    page = visitor.open(visitor.state(a=TEXT, view="head", layer=LAYER, head=HEAD))
    said(page, f"Layer {LAYER} head {HEAD} shown.")
    weights = exported(page)["weights"]
    page.get_by_role("button", name="Norms", exact=True).click()
    expect(page).to_have_url(re.compile("measure=norms"))
    said(page, f"Layer {LAYER} head {HEAD} norms shown.")
    found = exported(page)
    np.testing.assert_allclose(found["norms"], expected, rtol=1e-4, atol=1e-6)
    assert "weights" not in found
    assert np.abs(expected - weights).max() > 0.1, "norms are no weights"
    told = rows_of(page, "#panel table.links")
    largest = np.sort(expected.ravel())[::-1]
    np.testing.assert_allclose([float(row[2]) for row in told], largest[: len(told)], atol=6e-5)
    expect(page.locator("#panel table.links th").last).to_have_text("norm")
    expect(page.locator(".readout")).to_contain_text(f"{largest[0]:.2g}")
    assert axe.violations(page) == []

    turn(page, "Rollout")
    said(page, "Norm rollout shown.")
    rollout = np.array(exported(page)["weights"])
    np.testing.assert_allclose(rollout.sum(axis=1), 1, atol=1e-4)
    asked = {"inputs": TEXT, "include": ["norm_rollout"]}
    reply = page.request.post(f"{visitor.url}/attention", data=asked).json()
    np.testing.assert_allclose(rollout, reply["results"][0]["norm_rollout"], atol=1e-6)
    page.get_by_role("button", name="Weights", exact=True).click()
    said(page, "Rollout shown.")


def test_what_thumbnails_colours_mean(visitor: Visitor) -> None:
    page = visitor.open(visitor.state(a=TEXT))
    said(page, "72 heads drawn.")
    legend = page.locator(".colour-legend")
    half = 0.5 ** (
        np.log(9) / np.log(4)
    )  # nine tokens: uniform attention is a quarter of the scale
    expect(legend).to_contain_text(f" = {half:.2g}")
    page.get_by_label("Linear colours", exact=True).check()
    expect(legend).to_contain_text(" = 0.50")
