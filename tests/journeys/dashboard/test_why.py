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
from playwright.sync_api import Browser, Page, expect
from scipy.stats import spearmanr

from model.artifact.manifest import Artifact
from tests.journeys.conftest import running
from tests.journeys.dashboard import axe
from tests.journeys.dashboard.browser import VIEWER, Visitor, rows_of, said
from tests.journeys.dashboard.test_use import saved

pytestmark = pytest.mark.e2e
TEXT, OTHER = "A man is playing a guitar.", "Someone plays an instrument."
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


def marks(page: Page, name: str) -> list[float]:
    """Return the values that the page shows for the tokens of a text."""
    texts = page.get_by_role("list", name=name, exact=True).locator(".number").all_inner_texts()
    return [float(text) for text in texts]


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
    names = ("Text, token by token", "Other text, token by token")
    for name, expected in zip(names, (pairs.sum(axis=1), pairs.sum(axis=0)), strict=True):
        np.testing.assert_allclose(marks(page, name), expected, atol=6e-4)
    page.get_by_role("button", name="Occlusion").click()
    expect(page).to_have_url(re.compile("why=occlusion"))
    for name, expected in zip(names, (losses, others), strict=True):
        np.testing.assert_allclose(marks(page, name), expected, atol=6e-4)
    assert axe.violations(page) == []

    found = json.loads(saved(page, "JSON")[0])
    assert (found["other"], len(found["otherTokens"])) == (OTHER, len(b))
    np.testing.assert_allclose(found["pairs"]["pairs"], pairs, atol=1e-5)
    np.testing.assert_allclose(
        np.concatenate(found["occlusion"]["worth"]), losses + others, atol=2e-5
    )
    np.testing.assert_allclose(found["heads"], worth, atol=2e-5)
    decomposed = np.array(found["decomposition"]["pairs"])
    assert decomposed.sum() == pytest.approx(cosines[-1], abs=1e-4)
    for method, shares in (("pairs", pairs), ("decomposition", decomposed)):
        sums = np.concatenate([shares.sum(axis=1), shares.sum(axis=0)])
        expected = spearmanr(sums, losses + others).statistic
        assert found[method]["agreement"] == pytest.approx(expected, abs=0.01)
    assert saved(page, "SVG")[0].startswith(b"<svg")
    layer, head = strongest[0]
    page.get_by_role("button", name=f"Layer {layer} · Head {head}", exact=True).click()
    said(page, f"Layer {layer} head {head} shown.")


def test_words_are_sums_of_their_tokens(visitor: Visitor) -> None:
    page = visitor.open(visitor.state(a="electroencephalographers hum", c=OTHER, view="why"))
    expect(page.locator("#status")).to_have_text(re.compile("explained"))
    tokens = marks(page, "Text, token by token")
    page.get_by_label("Merge word pieces").check()
    words = page.get_by_role("list", name="Text, token by token", exact=True).locator("li")
    expect(words).to_have_count(4)  # two of the text, two special
    assert len(tokens) > 4
    assert sum(marks(page, "Text, token by token")) == pytest.approx(sum(tokens), abs=5e-3)


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
        visitor.check()
        visitor.close()
