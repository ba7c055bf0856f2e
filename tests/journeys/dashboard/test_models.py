"""Comparison of one text in two models: maps and distances equal transformers'."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page, expect
from transformers import AutoModel, AutoTokenizer

from model.artifact.manifest import Artifact
from tests.journeys.conftest import running
from tests.journeys.dashboard.between import (
    Files,
    Network,
    failing,
    head_button,
    is_marked_old,
    maps,
    seen,
    set_option,
    turn,
    view,
)
from tests.journeys.dashboard.browser import DEFAULT, VIEWER, Visitor, said
from tests.journeys.dashboard.test_accessibility import WIDTHS, everywhere
from tests.journeys.dashboard.test_use import saved

pytestmark = pytest.mark.e2e
TEXT = "the cat sat near a red mat"
LAYER, HEAD = 3, 1


@pytest.fixture(scope="module")
def tiny(exported: Callable[..., Artifact], tiny_checkpoint: Path) -> Artifact:
    """Return a model with other layers, heads and word pieces than the default."""
    return exported(tiny_checkpoint, "tiny")


@pytest.fixture(scope="module")
def visitors(browser: Browser, tiny: Artifact) -> Iterator[Visitor]:
    """Yield a visitor of a service of both models."""
    with (
        running("--model", DEFAULT, "--artifact", str(tiny.folder)) as url,
        browser.new_context(**VIEWER) as context,
    ):
        yield Visitor(context, url)


@pytest.fixture
def both(visitors: Visitor) -> Iterator[Visitor]:
    """Yield the visitor, and check at the end that it has no complaints."""
    visitors.expected = ()
    yield visitors
    visitors.check()
    visitors.close()


def attentions(tokenizer: Any, model: Any) -> tuple[NDArray[np.float64], list[list[int]]]:
    """Return every head's weights `[L, N, S, S]`, and the tokens of each word of the text."""
    encoded = tokenizer(TEXT, return_tensors="pt", return_offsets_mapping=True)
    offsets = encoded.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        found = model(**encoded, output_attentions=True).attentions
    weights = np.stack([layer[0].numpy() for layer in found]).astype(np.float64)
    words = [match.span() for match in re.finditer(r"\S+", TEXT)]
    groups = [
        [i for i, (a, b) in enumerate(offsets) if start <= a < b <= end] for start, end in words
    ]
    return weights, groups


def by_words(weights: NDArray[np.float64], groups: list[list[int]]) -> NDArray[np.float64]:
    """Merge weights `[S, S]` into words; the last column is the weight on special tokens."""
    rows = np.stack([weights[group].mean(axis=0) for group in groups])
    columns = np.stack([rows[:, group].sum(axis=1) for group in groups], axis=1)
    return np.concatenate([columns, 1 - columns.sum(axis=1, keepdims=True)], axis=1)


def far(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the mean total variation distance of two maps' rows."""
    return float(0.5 * np.abs(one - other).sum(axis=1).mean())


def opened(visitor: Visitor, **state: Any) -> Page:
    """Open the view of both models, and wait until it is shown."""
    page = visitor.open(
        visitor.state(**{"view": "models", "layer": LAYER, "head": HEAD, "a": TEXT} | state)
    )
    said(page, f"Layer {LAYER} head {HEAD} in two models shown.")
    return page


def test_a_head_and_the_most_alike_of_the_other_model(
    both: Visitor, transformers_reference: Any, tiny_checkpoint: Path
) -> None:
    own, own_words = attentions(*transformers_reference)
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    model = AutoModel.from_pretrained(tiny_checkpoint, attn_implementation="eager")
    other, other_words = attentions(tokenizer, model.eval())
    head = by_words(own[LAYER, HEAD], own_words)
    apart = np.array([[far(head, by_words(one, other_words)) for one in layer] for layer in other])
    assert own_words != other_words, "the models cut words into other pieces"

    page = opened(both)
    found = json.loads(saved(page, "JSON")[0])
    np.testing.assert_allclose(found["distances"], apart.ravel(), atol=1e-3)
    nearest = divmod(int(apart.argmin()), apart.shape[1])
    assert (found["other"]["layer"], found["other"]["head"]) == nearest
    np.testing.assert_allclose(found["maps"][0]["weights"], own[LAYER, HEAD], atol=1e-5)
    np.testing.assert_allclose(found["maps"][1]["weights"], other[nearest], atol=1e-5)
    assert len(found["maps"]) == 2, "nothing is subtracted where tokens differ"
    alike = view(page).get_by_role("region", name="Most alike heads").get_by_role("listitem")
    chips = alike.get_by_role("button")
    told = [float(text.split()[-1]) for text in chips.all_inner_texts()]
    np.testing.assert_allclose(told, np.sort(apart.ravel())[: len(told)], atol=1e-3)
    assert not (violations := everywhere(page, WIDTHS)), sorted(violations)
    assert saved(page, "SVG")[0].startswith(b"<svg")

    farthest = divmod(int(apart.argmax()), apart.shape[1])
    head_button(page, "Heads of the other model", *farthest).click()
    expect(page).to_have_url(re.compile(r"against={}\.{}".format(*farthest)))
    said(page, f"Layer {LAYER} head {HEAD} in two models shown.")
    page.reload()
    said(page, f"Layer {LAYER} head {HEAD} in two models shown.")
    weights = json.loads(saved(page, "JSON")[0])["maps"][1]["weights"]
    np.testing.assert_allclose(weights, other[farthest], atol=1e-5)

    set_option(page, "Merge word pieces")
    set_option(page, "Hide special tokens")
    merged = json.loads(saved(page, "JSON")[0])["maps"]
    for one, expected in zip(merged, (head, by_words(other[farthest], other_words)), strict=False):
        np.testing.assert_allclose(one["weights"], expected[:, :-1], atol=1e-5)
    assert len(merged) == 3, "words are the same, and have a difference"


def test_the_other_way_round_and_a_text_of_other_words(both: Visitor, tiny: Artifact) -> None:
    """The page shows the second model first; only the first model reads the whole text."""
    name = tiny.manifest.model
    text = " ".join(["a cat"] * 60)
    page = both.context.new_page()
    state = both.state(view="models", a=text, cut=1)
    page.goto(f"{both.url}/?model={name}{state}")
    said(page, "Layer 0 head 0 in two models shown.")
    expect(page.locator("#model")).to_contain_text(name)
    options = view(page).get_by_role("combobox", name="Other model").locator("option")
    assert options.all_inner_texts() == [DEFAULT]
    expect(view(page)).to_contain_text("cut this text into different words")
    found = json.loads(saved(page, "JSON")[0])
    assert (found["distances"], found["other"]["model"]) == (None, DEFAULT)
    assert len(found["maps"][1]["rows"]) == 122 != len(found["maps"][0]["rows"])
    page.close()


def test_an_old_head_is_not_shown_nor_saved_as_the_new(both: Visitor) -> None:
    page = opened(both, against="0.0")
    files, network = Files(page), Network(page)
    head_button(page, "Heads of the other model", 1, 1).click()
    network.asked()
    for one in seen(maps(page)):
        assert is_marked_old(one)
    files.try_to_save("JSON")
    network.release()
    said(page, f"Layer {LAYER} head {HEAD} in two models shown.")
    for content in [*(content for _, content in files.contents()), files.save("JSON")]:
        assert json.loads(content)["other"]["head"] == 1


def test_an_error_of_the_other_model_is_told_in_the_view(both: Visitor) -> None:
    both.expected = ("status of 500",)
    page = both.open(both.state(a=TEXT, layer=LAYER, head=HEAD))
    said(page, "72 heads drawn.")
    with failing(page, status=500):
        turn(page, "Two models")
        expect(view(page).get_by_role("alert")).to_be_visible()
        assert maps(page).count() == 0


def test_one_model_has_nobody_beside_it(visitor: Visitor) -> None:
    page = visitor.open(visitor.state(view="models"))
    expect(view(page)).to_contain_text("This service has one model.")
    turn(page, "Comparison")
    expect(page.get_by_role("tab", name="Another text")).to_be_visible()
    expect(page.get_by_role("tab", name="Another model")).to_have_count(0)
