"""View of why two texts are alike, against transformers."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from playwright.sync_api import Browser, Locator, Page, Route, expect
from scipy.stats import spearmanr

from model.artifact.manifest import Artifact
from tests.journeys.conftest import running
from tests.journeys.dashboard import axe
from tests.journeys.dashboard.between import set_option, turn
from tests.journeys.dashboard.browser import VIEWER, Visitor, rows_of, said
from tests.journeys.dashboard.test_use import saved

pytestmark = pytest.mark.e2e
TEXT, OTHER = "A man is playing a guitar.", "Someone plays an instrument."
WORDS = "electroencephalographers hum"
NAMES = ("Text, token by token", "Other text, token by token")
Vectors = list[NDArray[np.float32]]


def states(reference: Any, text: str, without: int | None = None) -> Vectors:
    """Return every layer's vectors of a text, without one token if it is given."""
    tokenizer, model = reference
    encoded = tokenizer(text, return_tensors="pt")
    if without is not None:
        encoded["attention_mask"][0, without] = 0
    with torch.no_grad():
        found = model(**encoded, output_hidden_states=True).hidden_states
    kept = encoded["attention_mask"][0].bool()
    return [state[0][kept].numpy() for state in found]


def cosine(x: NDArray[np.float32], y: NDArray[np.float32]) -> float:
    """Return the cosine of the means of two texts' vectors."""
    a, b = x.mean(axis=0), y.mean(axis=0)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def without_head(reference: Any, text: str, layer: int, head: int) -> NDArray[np.float32]:
    """Return the last layer's vectors when a head's input to the output projection is zero."""
    _, model = reference
    size = model.config.hidden_size // model.config.num_attention_heads

    def zeroed(_: Any, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        heads = inputs[0].clone()
        heads[..., head * size : (head + 1) * size] = 0
        return (heads,)

    handle = model.encoder.layer[layer].attention.output.dense.register_forward_pre_hook(zeroed)
    try:
        return states(reference, text)[-1]
    finally:
        handle.remove()


def words_of(page: Page, name: str) -> Locator:
    """Return the shaded words of a text."""
    return page.get_by_role("group", name=name, exact=True).get_by_role("button")


def marks(page: Page, name: str) -> list[float]:
    """Return the values that the page shows for the tokens of a text, special ones included."""
    says = [one.get_attribute("data-says") or "" for one in words_of(page, name).all()]
    values = [float(one.rpartition(", ")[2]) for one in says]
    text = page.locator(".marked-text", has=page.get_by_role("group", name=name, exact=True))
    rest = text.locator(".readout").get_attribute("data-rest") or ""
    if not rest:
        return values
    special = dict(one.rsplit(" ", 1) for one in rest.split(", "))
    return [float(special.get("[CLS]", 0)), *values, float(special.get("[SEP]", 0))]


def parts_of_colour(colour: str) -> list[float]:
    """Return the numbers of a CSS colour."""
    return [float(number) for number in re.findall(r"[\d.]+", colour.removeprefix("color(srgb"))]


def negative_is_brown(page: Page) -> bool:
    """Return whether the colours of signed maps go from brown to teal."""
    ends = page.evaluate(
        """async () => {
          const { rampImage } = await import('/dashboard/draw/colours.js');
          const image = rampImage(true);
          const { data } = image.getContext('2d').getImageData(0, 0, image.width, 1);
          return [data.slice(0, 3), data.slice(-4, -1)].map((one) => [...one]);
        }"""
    )
    (red, _, blue), (other_red, _, other_blue) = ends
    return bool(red > blue and other_red < other_blue)


def texts_of(picture: str) -> set[str]:
    """Return the texts of an SVG."""
    return set(re.findall(r"<text[^>]*>([^<]*)</text>", picture))


def strongest_at_full_strength(page: Page) -> bool:
    """Return whether each text's largest value has the darkest shade."""
    shares = "(items) => items.map((one) => Number(one.style.getPropertyValue('--share')))"
    return all(max(words_of(page, name).evaluate_all(shares)) == 1 for name in NAMES)


def leading(losses: list[float], others: list[float]) -> str:
    """Return the sentence of the words with the largest losses, of those with letters."""
    words = zip(
        ["A", "man", "is", "playing", "a", "guitar", "Someone", "plays", "an", "instrument"],
        [*losses[1:-2], *others[1:-2]],
        strict=True,
    )
    largest = max(map(abs, [*losses[1:-1], *others[1:-1]]))
    strong = sorted((one for one in words if abs(one[1]) >= largest / 10), key=lambda one: -one[1])
    up = [f"{word} {loss:.3f}" for word, loss in strong if loss > 0][:2]
    down = [f"{word} {loss:.3f}" for word, loss in reversed(strong) if loss < 0][:2]
    above = f"{' and '.join(up)} {'make' if len(up) > 1 else 'makes'} them alike"
    below = f"{' and '.join(down)} {'push' if len(down) > 1 else 'pushes'} them apart"
    return f"{'; '.join([above, *([below] if down else [])])}."


def slow_and_busy(route: Route) -> None:
    """Leave /explain without an answer for occlusion; a decomposition misses its deadline."""
    body = route.request.post_data or ""
    if "decomposition" in body:
        problem = {"title": "Deadline passed", "detail": "no time beside the others"}
        route.fulfill(status=504, json=problem)
    elif "occlusion" not in body:
        route.continue_()


def test_methods_come_and_fail_one_by_one(visitor: Visitor) -> None:
    visitor.expected = ("status of 504",)
    page = visitor.open("#a=x")
    page.clock.install()
    page.route("**/explain", slow_and_busy)
    page.evaluate(f"location.hash = '{visitor.state(a=TEXT, c=OTHER, view='why')}'")
    reliability = page.get_by_role("region", name="How reliable is this?")
    first = words_of(page, NAMES[0]).first
    expect(first).to_have_attribute("data-says", "\u2068A\u2069")
    page.get_by_role("button", name="By final vectors").click()
    expect(first).to_have_attribute("data-says", re.compile(r", \+?-?0\."))
    found = json.loads(saved(page, "JSON")[0])
    assert found["shown"] == "by final vectors"
    assert "occlusion" not in found
    bar = reliability.get_by_role("progressbar", name="Progress of occlusion")
    expect(bar).to_be_visible()
    reliability.get_by_role("button", name="Stop").click()
    expect(reliability.get_by_role("row", name="Remove each word")).to_contain_text("Stopped.")
    expect(page.locator("#status")).to_have_text(re.compile("explained"))
    failed = reliability.get_by_role("row", name="By input words")
    expect(failed).to_contain_text("No time beside the others.")
    expect(page.get_by_role("button", name="By input words")).to_be_disabled()
    page.clock.run_for(10_000)
    assert not [url for url in visitor.requests if url.endswith("/health/ready")]
    expect(page.get_by_role("region", name="Head by head").locator("table")).to_be_visible()
    page.unroute("**/explain")
    for row in (failed, reliability.get_by_role("row", name="Remove each word")):
        row.get_by_role("button", name="Try again").click()
        expect(row).to_contain_text("s")
        expect(row.get_by_role("button")).to_have_count(0)


def test_shares_of_a_similarity(visitor: Visitor, transformers_reference: Any) -> None:
    x, y = (states(transformers_reference, text) for text in (TEXT, OTHER))
    cosines = [cosine(one, other) for one, other in zip(x, y, strict=True)]
    a, b = x[-1], y[-1]
    norms = np.linalg.norm(a.mean(axis=0)) * np.linalg.norm(b.mean(axis=0))
    pairs = a @ b.T / (len(a) * len(b) * norms)
    losses = [
        cosines[-1] - cosine(states(transformers_reference, TEXT, token)[-1], b)
        for token in range(len(a))
    ]
    others = [
        cosines[-1] - cosine(a, states(transformers_reference, OTHER, token)[-1])
        for token in range(len(b))
    ]

    page = visitor.open(visitor.state(a=TEXT, c=OTHER, view="why"))
    said(page, f"Similarity {cosines[-1]:.3f} explained.")
    expect(page.locator(".why-similarity .figure")).to_have_text(f"{cosines[-1]:.4f}")
    layers = [float(row[-1]) for row in rows_of(page, "section[aria-label='Layer by layer'] table")]
    np.testing.assert_allclose(layers, cosines, atol=1e-4)
    worth = np.array(
        [
            [
                cosines[-1]
                - cosine(
                    *(without_head(transformers_reference, text, *place) for text in (TEXT, OTHER))
                )
                for place in ((layer, head) for head in range(12))
            ]
            for layer in range(6)
        ]
    )
    strongest = sorted(np.ndindex(6, 12), key=lambda place: -abs(worth[place]))[:5]
    by_head = rows_of(page, "section[aria-label='Head by head'] table")
    assert [row[0] for row in by_head] == [f"Layer {i} · Head {j}" for i, j in strongest]
    told = [float(row[-1]) for row in by_head]
    np.testing.assert_allclose(told, [worth[place] for place in strongest], atol=1e-4)
    brown = page.get_by_role("group", name="Loss without each head").locator("button.less")
    colours = brown.evaluate_all("(all) => all.map((one) => getComputedStyle(one).backgroundColor)")
    assert brown.count() == pytest.approx((worth < 0).sum(), abs=1)
    assert all(red > blue for red, _, blue, *_ in map(parts_of_colour, colours))
    for name, expected in zip(NAMES, (losses, others), strict=True):
        np.testing.assert_allclose(marks(page, name), expected, atol=6e-4)
    assert strongest_at_full_strength(page)
    assert page.locator(".leading").inner_text() == leading(losses, others)
    picture = saved(page, "SVG")[0].decode()
    page.get_by_role("button", name="By final vectors").click()
    expect(page).to_have_url(re.compile("why=pairs"))
    for name, expected in zip(NAMES, (pairs.sum(axis=1), pairs.sum(axis=0)), strict=True):
        np.testing.assert_allclose(marks(page, name), expected, atol=6e-4)
    assert strongest_at_full_strength(page)
    assert negative_is_brown(page)
    assert axe.violations(page) == []

    found = json.loads(saved(page, "JSON")[0])
    assert (found["other"], len(found["otherTokens"])) == (OTHER, len(b))
    assert (found["texts"], found["similarity"]) == ([TEXT, OTHER], pytest.approx(cosines[-1]))
    np.testing.assert_allclose(found["pairs"]["pairs"], pairs, atol=1e-5)
    np.testing.assert_allclose(
        np.concatenate(found["occlusion"]["worth"]), losses + others, atol=2e-5
    )
    np.testing.assert_allclose(found["heads"], worth, atol=2e-5)
    decomposed = np.array(found["decomposition"]["pairs"])
    assert decomposed.sum() == pytest.approx(cosines[-1], abs=1e-4)
    reliability = rows_of(page, "section[aria-label='How reliable is this?'] table")
    for row, shares in zip(reliability[1:], (pairs, decomposed), strict=True):
        sums = np.concatenate([shares.sum(axis=1), shares.sum(axis=0)])
        expected = spearmanr(sums, losses + others).statistic
        assert float(row[3]) == pytest.approx(expected, abs=0.015)
    assert {f"{loss:.3f}".replace("-0.000", "0.000") for loss in losses} <= texts_of(picture)
    assert f"Similarity {cosines[-1]:.4f} · Remove each word" in texts_of(picture)
    layer, head = strongest[0]
    page.get_by_role("button", name=f"Layer {layer} · Head {head}", exact=True).click()
    said(page, f"Layer {layer} head {head} shown.")


def test_a_second_text_that_is_cut_or_unknown_is_said_to_be(visitor: Visitor) -> None:
    unknown = "猫は箱の中で眠っている。"
    page = visitor.open(visitor.state(a=unknown, c="החתול ישן בקופסה.", cut=1, view="why"))
    for name, direction in zip(NAMES, ("ltr", "rtl"), strict=True):
        tokens = page.get_by_role("group", name=name, exact=True)
        expect(tokens).to_have_css("direction", direction)
    said_of_first = page.get_by_role("region", name="Input").get_by_text("are unknown to the model")
    expect(said_of_first).to_be_visible()
    notes = page.locator("#panel .text-note")
    expect(notes).to_have_count(0)
    page.get_by_role("textbox", name="Other text").fill(unknown)
    expect(notes).to_contain_text("Over a tenth of its tokens are unknown")
    turn(page, "Many texts")
    page.get_by_role("textbox", name="Texts, one").fill(f"{OTHER}\n{unknown}\n{'word ' * 600}")
    expect(notes).to_have_text(re.compile(r"^1 of the texts is cut\. In 1 of them over a tenth"))
    found = json.loads(saved(page, "JSON")[0])
    assert found["texts"][:2] == [OTHER, unknown]
    assert "tokens" not in found
    turn(page, "Comparison")
    page.get_by_role("textbox", name="Other text").fill("word " * 600)
    expect(notes).to_have_text("The other text is cut: the model sees 512 of its tokens. ")


def test_words_are_sums_of_their_tokens_or_removed_as_a_whole(
    visitor: Visitor, api: httpx.Client
) -> None:
    page = visitor.open(visitor.state(a=WORDS, c=OTHER, view="why"))
    expect(page.locator("#status")).to_have_text(re.compile("explained"))
    page.get_by_role("button", name="By final vectors").click()
    tokens = marks(page, NAMES[0])
    set_option(page, "Merge word pieces")
    words = words_of(page, NAMES[0])
    expect(words).to_have_count(2)
    assert len(tokens) > 4
    assert sum(marks(page, NAMES[0])) == pytest.approx(sum(tokens), abs=5e-3)
    body = {"inputs": [[WORDS, OTHER]], "include": ["occlusion"], "spans": "words"}
    [told] = api.post("/explain", json=body).json()["results"]
    page.get_by_role("button", name="Remove each word").click()
    expect(words).to_have_text([re.compile(word) for word in WORDS.split()])
    np.testing.assert_allclose(marks(page, NAMES[0]), told["occlusion"][0], atol=6e-4)


def sentences(*subjects: str) -> str:
    """Return a text of one sentence for each subject and colour."""
    colours = ("red", "green", "blue", "white")
    return " ".join(
        f"The {subject} near the old house is {colour} today."
        for colour in colours
        for subject in subjects
    )


def test_long_texts_lose_sentences_first(visitor: Visitor, api: httpx.Client) -> None:
    """Sentences are left out before the words that promise most, and the page counts both."""
    first, second = sentences("cat", "dog", "tree", "boat"), sentences("bird", "dog", "car", "boat")
    page = visitor.open(visitor.state(a=first, c=second, view="why"))
    told = page.get_by_text("Left out one at a time")
    expect(told).to_contain_text("32 of 32 sentences")
    expect(told).to_contain_text("and 40 of 320 words")
    bodies = [
        json.loads(request.post_data or "{}")
        for request in (reply.request for reply in visitor.replies)
        if request.url.endswith("/explain")
    ]
    assert [body.get("spans") for body in bodies[:3]] == [None, "sentences", "words"]
    body = {"inputs": [[first, second]], "include": ["occlusion"], "spans": "sentences"}
    [expected] = api.post("/explain", json=body).json()["results"]
    for side, name in enumerate(NAMES):
        np.testing.assert_allclose(marks(page, name), expected["occlusion"][side], atol=6e-4)
    expect(words_of(page, "Text, strongest words")).to_have_count(20)
    bird, losses = page.locator(".leading b").last, page.locator(".leading")
    expect(bird).to_have_text("bird")
    expect(losses).to_contain_text("make them alike")


def test_numbers_keep_their_direction_beside_words_from_right_to_left(visitor: Visitor) -> None:
    """The minus sign of a number stands before it."""
    page = visitor.open(visitor.state(a="القط ينام على السرير", c="the dog barks", view="why"))
    expect(page.locator("#status")).to_have_text(re.compile("explained"), timeout=60000)
    style = "(node) => [getComputedStyle(node).direction, getComputedStyle(node).unicodeBidi]"
    number = page.locator(".leading .number").first
    assert number.evaluate(style) == ["ltr", "isolate"]


def test_matches_of_late_interaction(browser: Browser, late_artifact: Artifact) -> None:
    with (
        running("--artifact", str(late_artifact.folder)) as url,
        browser.new_context(**VIEWER) as context,
    ):
        visitor = Visitor(context, url)
        page = visitor.open(visitor.state(a="w1 w2", c="w3 w1", view="why"))
        expect(page.locator("#status")).to_have_text(re.compile("explained"))
        [told] = httpx.post(f"{url}/explain", json={"inputs": [["w1 w2", "w3 w1"]]}).json()[
            "results"
        ]
        expect(page.locator(".why-similarity .figure")).to_have_text(f"{told['similarity']:.4f}")
        scores = [float(score) for *_, score in rows_of(page, "#panel table.links")]
        best = sorted((match["score"] for match in told["matches"]), reverse=True)[: len(scores)]
        np.testing.assert_allclose(scores, best, atol=1e-4)
        picture = saved(page, "SVG")[0].decode()
        assert {f"{score:.4f}" for score in best} <= texts_of(picture)
        assert re.match(r'<svg[^>]* height="\d+"', picture)
        assert saved(page, "PNG")[0].startswith(b"\x89PNG")
        page = visitor.open(visitor.state(a="w1"))

        def twice(route: Route) -> None:
            reply = route.fetch().json()
            (result,) = reply["results"]
            result["matches"] *= 2
            result["similarity"] *= 2
            route.fulfill(json=reply)

        page.route("**/explain", twice)
        page.evaluate(
            "(hash) => { location.hash = hash; }", visitor.state(a="w1 w2", c="w3 w1", view="why")
        )
        expect(page.locator("#status")).to_have_text(re.compile("explained"))
        rest = page.locator("#panel table.links tfoot td")
        expect(rest.first).to_have_text(re.compile(r"^\d+ more$"))
        scores = [float(score) for *_, score in rows_of(page, "#panel table.links")]
        total = float(page.locator(".why-similarity .figure").inner_text())
        assert sum(scores) + float(rest.last.inner_text()) == pytest.approx(total, abs=1e-3)
        visitor.check()
        visitor.close()
