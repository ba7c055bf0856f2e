"""Query and key of two tokens in a head: transformers' own, with the features and scores."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from playwright.sync_api import Locator, Page, Route, expect

from tests.journeys.dashboard.between import (
    Files,
    Network,
    failing,
    head_button,
    is_marked_old,
    maps,
    seen,
    set_option,
    told,
    view,
)
from tests.journeys.dashboard.browser import DEFAULT, Visitor, rows_of
from tests.journeys.dashboard.oracle import FIRST_TEXT, Answer

pytestmark = pytest.mark.e2e
SCORES = "**/attention/scores"
LAYER, HEAD = 3, 1
SVG = "{http://www.w3.org/2000/svg}"
PIECES = "tokenizers like embeddings"
"""[CLS] token ##izer ##s like em ##bed ##ding ##s [SEP]"""


class Compared(NamedTuple):
    """Queries `[S, p]`, keys `[S, p]`, scores `[S, S]` and weights `[S, S]` of a head."""

    queries: NDArray[Any]
    keys: NDArray[Any]
    scores: NDArray[Any]
    weights: NDArray[Any]

    def products(self, query: int, key: int) -> NDArray[Any]:
        """Return the scaled products `[p]` of a query and a key, feature by feature."""
        return self.queries[query] * self.keys[key] / np.sqrt(self.queries.shape[1])


def compared(
    reference: Any, text: str, layer: int, head: int, off: tuple[int, int] | None = None
) -> Compared:
    """Compute with transformers' projections; the output of the head `off` is set to zero."""
    tokenizer, model = reference
    own = model.encoder.layer[layer].attention.self
    size = own.attention_head_size

    def silence(_: Any, given: Any) -> Any:
        context = given[0].clone()
        assert off is not None
        context[..., off[1] * size : (off[1] + 1) * size] = 0
        return (context, *given[1:])

    hooks = []
    if off is not None:
        dense = model.encoder.layer[off[0]].attention.output.dense
        hooks.append(dense.register_forward_pre_hook(silence))
    with torch.inference_mode():
        output = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
        part = slice(head * size, (head + 1) * size)
        state = output.hidden_states[layer]
        queries, keys = (linear(state)[0, :, part] for linear in (own.query, own.key))
        scores = queries @ keys.T / size**0.5
        weights = scores.softmax(-1)
    for hook in hooks:
        hook.remove()
    return Compared(*(one.numpy() for one in (queries, keys, scores, weights)))


def opened(visitor: Visitor, says: str = "it and key of animal", **state: Any) -> Page:
    """Open the view, and wait until the pair is shown."""
    page = visitor.open(visitor.state(**{"view": "compared", "layer": LAYER, "head": HEAD} | state))
    told(page, f"Query of {says} in layer {LAYER} head {HEAD} shown.")
    return page


def fact(page: Page, name: str) -> Locator:
    """Return the value with a name."""
    return view(page).locator("dt", has_text=re.compile(f"^{name}$")).locator("+ dd")


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, atol=2e-5)


def bars(svg: bytes, count: int) -> list[NDArray[Any]]:
    """Return the heights of the bars in each row of a file, negative below the zero line."""
    rects = [r.attrib for r in ET.fromstring(svg).iter(f"{SVG}rect")][1:]
    assert len(rects) == 3 * count
    rows = [rects[i * count : (i + 1) * count] for i in range(3)]
    zeros = [float(line.get("y1", "")) for line in ET.fromstring(svg).iter(f"{SVG}line")]
    return [
        np.array([float(b["height"]) * (-1 if float(b["y"]) >= zero else 1) for b in row])
        for row, zero in zip(rows, zeros, strict=True)
    ]


def test_a_pair_is_transformers_own(
    visitor: Visitor, transformers_reference: Any, animal: Answer
) -> None:
    expected = compared(transformers_reference, FIRST_TEXT, LAYER, HEAD)
    it, other = animal.at("it"), animal.at("animal")
    products = expected.products(it, other)
    page = opened(visitor)
    files = Files(page)
    found = json.loads(files.save("JSON"))
    close(found["query"], expected.queries[it])
    close(found["key"], expected.keys[other])
    close(found["products"], products)
    close([found["sum"], found["score"]], [expected.scores[it, other]] * 2)
    close(found["scores"], expected.scores[it])
    close(found["weights"], expected.weights[it])
    assert (found["positions"], found["scale"]) == (0, pytest.approx(32**-0.5))
    assert (found["from"]["text"], found["to"]["text"]) == ("it", "animal")

    expect(fact(page, "Sum of products")).to_have_text(f"{products.sum():.3f}")
    expect(fact(page, "Score")).to_have_text(f"{expected.scores[it, other]:.3f}")
    expect(fact(page, "Weight")).to_have_text(f"{expected.weights[it, other]:.4f}")
    rank = 1 + int((expected.scores[it] > expected.scores[it, other]).sum())
    expect(fact(page, "Rank of the score")).to_have_text(f"{rank} of {len(animal.tokens)}")
    expect(fact(page, "Relative positions add")).to_have_count(0)

    strongest = np.argsort(-np.abs(products))
    features = rows_of(page, "[aria-label='Strongest features'] table")
    assert [int(row[0]) for row in features] == strongest[:8].tolist()
    values = np.stack([expected.queries[it], expected.keys[other], products], axis=1)
    np.testing.assert_allclose(
        np.array(features)[:, 1:].astype(float), values[strongest[:8]], atol=6e-4
    )
    keys = rows_of(page, "[aria-label='Scores of keys'] table")
    best = np.argsort(-expected.scores[it])[:8]
    assert [row[0] for row in keys] == [animal.names[i] for i in best]
    np.testing.assert_allclose(
        np.array(keys)[:, 1].astype(float), expected.scores[it][best], atol=6e-4
    )
    svg = files.save("SVG")
    written = [node.text for node in ET.fromstring(svg).iter(f"{SVG}text")]
    sum_of_all = f"Products, which add up to {products.sum():.3f}"
    assert {"Query of “it”", "Key of “animal”", sum_of_all} <= set(written)
    assert f"layer {LAYER} head {HEAD} · {DEFAULT}" in str(written[0])
    for drawn, row in zip(bars(svg, 32), values.T, strict=True):
        np.testing.assert_allclose(drawn / np.ptp(drawn), row / np.ptp(row), atol=1e-3)


def test_features_are_walked_through_and_sorted(visitor: Visitor, animal: Answer) -> None:
    """Other keys of the same query are shown without another request."""
    page = opened(visitor)
    found = json.loads(Files(page).save("JSON"))

    def says(feature: int) -> str:
        names = {"query": "query", "key": "key", "product": "products"}
        numbers = (f"{name} {found[of][feature]:.4f}" for name, of in names.items())
        return f"Feature {feature}: {', '.join(numbers)}"

    canvas = maps(page)
    canvas.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    readout = view(page).locator(".readout")
    expect(readout).to_have_text(says(1))
    expect(readout).to_have_attribute("aria-live", "polite")
    view(page).get_by_role("button", name="Strongest first").click()
    expect(page).to_have_url(re.compile("strongest=1"))
    canvas.focus()
    page.keyboard.press("Home")
    strongest = np.argsort(-np.abs(found["products"]))
    expect(readout).to_have_text(says(strongest[0]))
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + 60)
    expect(readout).to_have_text(says(strongest[-1]))

    asked = len([url for url in visitor.requests if url.endswith("/attention/scores")])
    keys = view(page).get_by_role("region", name="Scores of keys")
    keys.get_by_role("button", name="[CLS]").click()
    told(page, f"Query of it and key of [CLS] in layer {LAYER} head {HEAD} shown.")
    other = json.loads(Files(page).save("JSON"))
    assert other["score"] == found["scores"][0]
    assert (other["query"], other["scores"]) == (found["query"], found["scores"])
    expect(keys.get_by_role("button", name="[CLS]")).to_have_attribute("aria-pressed", "true")
    assert len([url for url in visitor.requests if url.endswith("/attention/scores")]) == asked == 1
    expect(page).to_have_url(re.compile(f"from={animal.at('it')}&to=0"))


def test_pieces_of_words_and_a_head_that_is_off(
    visitor: Visitor, transformers_reference: Any
) -> None:
    expected = compared(transformers_reference, PIECES, LAYER, HEAD, off=(1, 8))
    whole = compared(transformers_reference, PIECES, LAYER, HEAD)
    assert np.abs(expected.scores[1, 5] - whole.scores[1, 5]) > 1e-3
    page = opened(visitor, "token and key of em", a=PIECES, **{"from": 1}, to=5, words=1, off="1.8")
    expect(view(page)).to_contain_text("Every piece of a word has a query and a key of its own")
    found = json.loads(Files(page).save("JSON"))
    close(found["products"], expected.products(1, 5))
    close(found["scores"], expected.scores[1])
    set_option(page, "Merge word pieces", on=False)
    expect(view(page)).not_to_contain_text("Every piece")


def test_two_tokens_are_chosen_in_the_text(visitor: Visitor) -> None:
    page = visitor.open(visitor.state(view="compared", layer=LAYER, head=HEAD, a="cats sleep"))
    expect(view(page)).to_contain_text("Click two tokens of the text")
    expect(Files(page).button("PNG")).to_be_disabled()
    for token in ("sleep", "cats"):
        page.get_by_role("button", name=token, exact=True).click()
    told(page, f"Query of sleep and key of cats in layer {LAYER} head {HEAD} shown.")


def test_a_head_that_is_not_there_yet_and_one_that_fails(
    visitor: Visitor, transformers_reference: Any, animal: Answer
) -> None:
    """Requests are held, answered out of order, and fail: the named head is the one shown."""
    visitor.expected = ("status of 500",)
    page = opened(visitor)
    files, network = Files(page), Network(page, SCORES)
    for count, head in enumerate((4, 8, 2), start=1):
        head_button(page, "Heads", LAYER, head).click()
        network.asked(count)
        assert all(is_marked_old(one) for one in seen(maps(page)))
        files.try_to_save("JSON")
    for route in reversed(network.held):
        network.answer(route)
    told(page, f"Query of it and key of animal in layer {LAYER} head 2 shown.")
    network.release()
    assert not is_marked_old(view(page))
    at = animal.at("it"), animal.at("animal")
    for content in [*(content for _, content in files.contents()), files.save("JSON")]:
        found = json.loads(content)
        expected = compared(transformers_reference, FIRST_TEXT, LAYER, found["head"])
        close(found["products"], expected.products(*at))
    assert found["head"] == 2

    with failing(page, SCORES, status=500):
        head_button(page, "Heads", LAYER, 6).click()
        page.get_by_role("alert").wait_for()
        assert maps(page).count() == 0
        expect(files.button("JSON")).to_be_disabled()
    page.get_by_role("button", name="Try again").click()
    told(page, f"Query of it and key of animal in layer {LAYER} head 6 shown.")


def test_scores_that_are_more_than_their_products_or_none(
    visitor: Visitor, transformers_reference: Any, animal: Answer
) -> None:
    """Relative positions add to a score; some encoders' scores are not sums of products."""
    expected = compared(transformers_reference, FIRST_TEXT, LAYER, HEAD)
    it, other = animal.at("it"), animal.at("animal")
    page = visitor.open("#a=x")
    changes: dict[str, Any] = {}

    def change(route: Route) -> None:
        response = route.fetch()
        reply = response.json()
        [result] = reply["results"]
        result["scores"][0][other] += changes["added"]
        route.fulfill(response=response, json=reply | {"scale": changes["scale"]})

    page.route(SCORES, change)
    changes |= {"added": 0.5, "scale": 32**-0.5}
    page.goto(f"{visitor.url}/{visitor.state(view='compared', layer=LAYER, head=HEAD)}")
    told(page, re.compile("^Query of it and key of animal"))
    score = expected.scores[it, other]
    expect(fact(page, "Sum of products")).to_have_text(f"{score:.3f}")
    expect(fact(page, "Relative positions add")).to_have_text("0.500")
    expect(fact(page, "Score")).to_have_text(f"{score + 0.5:.3f}")
    assert json.loads(Files(page).save("JSON"))["positions"] == pytest.approx(0.5, abs=1e-5)

    changes |= {"added": 0, "scale": None}
    page.reload()
    expect(view(page)).to_contain_text("no sums of products")
    expect(fact(page, "Score")).to_have_text(f"{score:.3f}")
    for name in ("Sum of products", "Relative positions add"):
        expect(fact(page, name)).to_have_count(0)
    expect(view(page).get_by_role("button", name="Strongest first")).to_have_count(0)
    found = json.loads(Files(page).save("JSON"))
    assert (found["products"], found["sum"], found["positions"]) == (None, None, 0)
    close(found["key"], expected.keys[other])
