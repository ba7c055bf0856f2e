"""View of one head over many texts: values equal transformers', and old ones are marked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from playwright.sync_api import Page, expect

from tests.journeys.dashboard import axe
from tests.journeys.dashboard.between import (
    Files,
    Network,
    head_button,
    is_marked_old,
    told,
    view,
)
from tests.journeys.dashboard.browser import Visitor, rows_of, said
from tests.journeys.dashboard.test_accessibility import WIDTHS, everywhere
from tests.journeys.dashboard.test_use import saved

pytestmark = pytest.mark.e2e
LAYER, HEAD = 3, 1
BOX = "Texts, one a line; the built-in samples when empty"
TEXTS = [
    *(f"{who} saw {what}." for who in ("Anna", "The dog", "Nobody") for what in ("it", "the moon")),
    *(f"{'very ' * count}good, isn't it?" for count in range(1, 9)),
    "Where do electroencephalographers sleep?",
    "Yes.",
    "Der Hund schläft unter dem Tisch.",
    "猫が寝ている。",
]
"""Texts, more than one request takes."""
TITLES = {
    "entropy": "Entropy",
    "distance": "Distance",
    "confidence": "Confidence",
    "cls": "[CLS] share",
    "sep": "[SEP] share",
    "self": "Self share",
    "previous": "Previous share",
    "next": "Next share",
}
"""Labels of the API's statistics on the page."""


def looked_at(reference: Any, text: str) -> tuple[list[str], NDArray[np.float64]]:
    """Return a text's tokens, and the head's weights in transformers, `[S, S]`."""
    tokenizer, model = reference
    encoded = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        maps = model(**encoded, output_attentions=True).attentions
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
    return tokens, maps[LAYER][0, HEAD].numpy().astype(np.float64)


def statistics(weights: NDArray[np.float64]) -> dict[str, float]:
    """Compute docs/api.md's statistics of a text whose last token is the only separator."""
    size = len(weights)
    places = np.arange(size)
    return {
        "entropy": float(-(weights * np.log(weights)).sum(axis=1).mean()),
        "distance": float((weights * np.abs(places[:, None] - places[None, :])).sum(axis=1).mean()),
        "confidence": float(weights.max(axis=1).mean()),
        "cls": float(weights[:, 0].mean()),
        "sep": float(weights[:, -1].mean()),
        "self": float(np.diagonal(weights).mean()),
        "previous": float(np.diagonal(weights, -1).mean()),
        "next": float(np.diagonal(weights, 1).mean()),
    }


def strongest(tokens: list[str], weights: NDArray[np.float64]) -> tuple[str, str, float]:
    """Return the link with the largest weight between tokens of the text."""
    own = weights[1:-1, 1:-1]
    query, key = np.unravel_index(own.argmax(), own.shape)
    return tokens[1 + query], tokens[1 + key], float(own.max())


def sort_by(page: Page, name: str) -> None:
    """Choose the statistic by which texts are ranked."""
    view(page).get_by_role("combobox", name="By", exact=True).select_option(label=name)


def captions(page: Page) -> dict[str, list[float]]:
    """Return the median, minimum and maximum of each statistic in its caption."""
    texts = view(page).get_by_role("figure").locator("figcaption").all_inner_texts()
    told = (re.fullmatch(r"(.+): (.+) \((.+)–(.+)\)", text) for text in texts)
    return {found[1]: [float(found[i]) for i in (2, 3, 4)] for found in told if found}


def test_a_head_over_many_texts(visitor: Visitor, transformers_reference: Any) -> None:
    maps = [looked_at(transformers_reference, text) for text in TEXTS]
    links = [strongest(*one) for one in maps]
    expected = [statistics(weights) for _, weights in maps]

    page = visitor.open(visitor.state(view="texts", layer=LAYER, head=HEAD, many="\n".join(TEXTS)))
    said(page, f"{len(TEXTS)} texts by layer {LAYER} head {HEAD} shown.")
    found = json.loads(saved(page, "JSON")[0])["many"]
    assert [one["text"] for one in found] == TEXTS
    assert [one["size"] for one in found] == [len(tokens) for tokens, _ in maps]
    for name in TITLES:
        values = [one["statistics"][name] for one in found]
        np.testing.assert_allclose(values, [one[name] for one in expected], atol=2e-5)
    assert [(one["link"]["from"], one["link"]["to"]) for one in found] == [
        (one, other) for one, other, _ in links
    ]
    np.testing.assert_allclose(
        [one["link"]["weight"] for one in found], [weight for *_, weight in links], atol=1e-5
    )
    told_by = captions(page)
    for name, title in TITLES.items():
        values = [one[name] for one in expected]
        wanted = [np.median(values), min(values), max(values)]
        np.testing.assert_allclose(told_by[title], wanted, atol=6e-4)

    for name, worth in (
        ("Strongest link", [weight for *_, weight in links]),
        ("Entropy", [one["entropy"] for one in expected]),
    ):
        sort_by(page, name)
        order = np.argsort(-np.array(worth), kind="stable")
        rows = rows_of(page, "#panel table.links")
        assert [row[0] for row in rows] == [TEXTS[i] for i in order]
        np.testing.assert_allclose(
            [float(row[2]) for row in rows], np.array(worth)[order], atol=6e-5
        )
        latin = [place for place, i in enumerate(order) if "猫" not in TEXTS[i]]
        for side, end in enumerate(("from", "to")):
            marked = view(page).locator(f"tbody .linked.{end}").all_inner_texts()
            wanted = [links[order[place]][side].removeprefix("##") for place in latin]
            assert [marked[place].lower() for place in latin] == wanted
    assert not (violations := everywhere(page, WIDTHS)), sorted(violations)
    assert saved(page, "SVG")[0].count(b"<text") >= len(TITLES)

    page.get_by_role("link", name=TEXTS[14]).click()
    said(page, f"Layer {LAYER} head {HEAD} shown.")
    weights = json.loads(saved(page, "JSON")[0])["weights"]
    np.testing.assert_allclose(weights, maps[14][1], atol=1e-5)
    page.go_back()
    said(page, f"{len(TEXTS)} texts by layer {LAYER} head {HEAD} shown.")


def test_built_in_samples_and_texts_of_a_file(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.open(visitor.state(view="texts"))
    told(page, re.compile(r"^\d\d texts by layer 0 head 0 shown"))
    file = tmp_path / "texts.txt"
    file.write_bytes("Ein Fuß.\r\n\r\nDeux pieds.\r\n  Три ноги.\r\n".encode())
    page.get_by_label("Open a file of texts").set_input_files(file)
    said(page, "3 texts by layer 0 head 0 shown.")
    expect(page.get_by_role("textbox", name=BOX)).to_have_value(re.compile("Deux pieds"))
    found = json.loads(saved(page, "JSON")[0])["many"]
    assert [one["text"] for one in found] == ["Ein Fuß.", "Deux pieds.", "Три ноги."]

    dropped = page.evaluate_handle(
        """() => {
          const dropped = new DataTransfer();
          dropped.items.add(new File(['One.\\nAnother.'], 'texts.txt', {type: 'text/plain'}));
          return dropped;
        }"""
    )
    page.get_by_role("textbox", name=BOX).dispatch_event("drop", {"dataTransfer": dropped})
    said(page, "2 texts by layer 0 head 0 shown.")


def test_too_many_texts_are_refused_before_anything_is_asked(
    visitor: Visitor, tmp_path: Path
) -> None:
    page = visitor.open(visitor.state(view="texts"))
    told(page, re.compile(r"shown\."))
    asked = len(visitor.requests)
    file = tmp_path / "texts.txt"
    for content in ("a\n" * 201, "a" * 100_000 + "\n", "a\n" + " " * 200_000 + "\na"):
        file.write_text(content)
        page.get_by_label("Open a file of texts").set_input_files(file)
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("At most 200 texts of 20000 characters in all")
        assert view(page).get_by_role("table").count() == 0
        assert axe.violations(page) == []
        assert page.get_by_role("button", name="JSON", exact=True).is_disabled()
        page.get_by_role("textbox", name=BOX).fill("")
        said(page, "40 texts by layer 0 head 0 shown.")
    again = [one for one in visitor.requests[asked:] if one.endswith("/attention")]
    assert len(again) <= 3 * 3, "the samples, each time"


def test_an_error_names_the_text(visitor: Visitor) -> None:
    visitor.expected = ("status of 422",)
    page = visitor.open(visitor.state(view="texts", many="\n".join([*TEXTS[:17], "word " * 600])))
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Text 18 has 602 tokens")
    assert view(page).get_by_role("table").count() == 0
    alert.get_by_role("button", name="Cut the text").click()
    said(page, "18 texts by layer 0 head 0 shown.")


def test_an_old_head_is_not_shown_nor_saved_as_the_new(visitor: Visitor) -> None:
    page = visitor.open(visitor.state(view="texts", layer=2, head=0, many="One.\nTwo."))
    said(page, "2 texts by layer 2 head 0 shown.")
    files, network = Files(page), Network(page)
    head_button(page, "Heads", 2, 8).click()
    network.asked()
    expect(view(page).get_by_role("heading").first).to_contain_text("Layer 2 · Head 0")
    for one in [*view(page).get_by_role("figure").all(), view(page).get_by_role("table")]:
        assert is_marked_old(one)
    files.try_to_save("JSON")
    network.release()
    said(page, "2 texts by layer 2 head 8 shown.")
    for content in [*(content for _, content in files.contents()), files.save("JSON")]:
        assert json.loads(content)["head"] == 8
