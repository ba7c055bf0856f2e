"""Search with models of other kinds, one service for all; numbers equal the API's replies."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from playwright.sync_api import Page, expect
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.journeys.dashboard import axe
from tests.journeys.dashboard.between import told, turn, view
from tests.journeys.dashboard.browser import Visitor, rows_of
from tests.journeys.dashboard.test_search import results, score_of

pytestmark = pytest.mark.e2e
PAIR = "where is the cat", "the cat sat near a red mat"
QUERY, DOCUMENTS = "the cat a b", ["b a the the cat z y", "the cat", "x y z"]


def opened(visitor: Visitor, model: str, **state: Any) -> Page:
    """Open the search with a model, and wait for its shares."""
    fields = {"view": "search", "q": QUERY, "results": "\n".join(DOCUMENTS), **state}
    page = visitor.open(f"?model={model}{visitor.state(**fields)}")
    told(page, "3 results ranked and explained.")
    return page


def asked(visitor: Visitor, model: str, route: str = "rank", **fields: Any) -> Any:
    """Return the API's reply."""
    body = {"model": model, **fields}
    if route == "rank":
        body |= {"query": QUERY, "documents": DOCUMENTS}
    answer = httpx.post(f"{visitor.url}/{route}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_cross_encoder_by_occlusion(visitor_of_kinds: Visitor) -> None:
    page = opened(visitor_of_kinds, "cross")
    expect(view(page)).to_contain_text("Tokens are shaded by what the score loses without them")
    reply = asked(visitor_of_kinds, "cross", explain="tokens")
    for shown, expected in zip(results(page), reply["results"], strict=True):
        assert score_of(shown) == pytest.approx(expected["score"], abs=6e-5)
        words = [one.get_attribute("data-says") for one in shown.locator("button.mark").all()]
        values = [float((word or "").split(", ")[1]) for word in words]
        assert values == pytest.approx(expected["shares"], abs=6e-5)


def test_matches_and_terms(visitor_of_kinds: Visitor) -> None:
    for kind, caption in (("late", "Matches of result"), ("sparse", "Terms of result")):
        page = opened(visitor_of_kinds, kind, picks="0,1")
        expect(view(page).get_by_role("table", name=caption)).to_have_count(2)
        scores = {r["index"]: r["score"] for r in asked(visitor_of_kinds, kind)["results"]}
        tables = rows_of(page, "table.matches")
        inputs = [[QUERY, DOCUMENTS[number]] for number in (0, 1)]
        found = asked(visitor_of_kinds, kind, "explain", inputs=inputs)["results"]
        expected = [
            sorted((m["score"] for m in one["matches"]), reverse=True)[:12] for one in found
        ]
        every = [*itertools.chain(*expected)]
        assert [float(row[-1]) for row in tables] == pytest.approx(every, abs=6e-5)
        for number, one in enumerate(found):
            assert sum(m["score"] for m in one["matches"]) == pytest.approx(
                scores[number], abs=1e-4
            )


def test_three_parts_and_ranks_in_two_models(visitor_of_kinds: Visitor) -> None:
    other = "cross"
    page = opened(visitor_of_kinds, "hybrid")
    reply = asked(visitor_of_kinds, "hybrid")
    for shown, expected in zip(results(page), reply["results"], strict=True):
        parts = expected["parts"]
        expect(shown).to_contain_text(
            f"dense {parts['dense']:.4f} · sparse {parts['sparse']:.4f} · "
            f"multi-vector {parts['multivector']:.4f}"
        )
    expect(view(page)).not_to_contain_text("“”")  # the model's own prompts are empty
    page.get_by_label("Compare with model").select_option(label=other)
    expect(page.get_by_role("heading", name="Ranks in two models")).to_be_visible()
    order = [one["index"] for one in asked(visitor_of_kinds, "cross")["results"]]
    for shown, expected in zip(results(page), reply["results"], strict=True):
        rank = order.index(expected["index"]) + 1
        expect(shown).to_contain_text(f"rank {rank} in {other}")
    expect(page.locator("bump-chart").get_by_role("img")).to_be_visible()
    assert axe.violations(page) == []


def test_prompts_are_seen_and_chosen(visitor_of_kinds: Visitor) -> None:
    page = opened(visitor_of_kinds, "prompted")
    badge = view(page).locator(".badge", has_text="have no prompt")
    expect(badge).to_contain_text("4 texts have no prompt")
    page.get_by_label("Prompt of the query").select_option(label="web")
    page.get_by_label("Prompt of the results").select_option(label="web")
    expect(badge).to_have_count(0)
    expect(view(page).locator(".fact", has_text="the a: ")).to_have_count(2)
    names = {"query_prompt_name": "web", "document_prompt_name": "web"}
    scores = [one["score"] for one in asked(visitor_of_kinds, "prompted", **names)["results"]]
    assert [score_of(one) for one in results(page)] == pytest.approx(scores, abs=6e-5)
    page.get_by_label("Prompt of the results").select_option(label="none")
    told(page, "3 results ranked and explained.")
    expect(view(page).locator(".fact", has_text="the a: ")).to_have_count(1)
    assert "dprompt=" in page.url


def test_a_cross_encoder_shows_the_score_of_a_pair(
    visitor_of_kinds: Visitor, cross_checkpoint: Path
) -> None:
    visitor = visitor_of_kinds
    tokenizer = AutoTokenizer.from_pretrained(cross_checkpoint)
    model = AutoModelForSequenceClassification.from_pretrained(cross_checkpoint).eval()
    with torch.no_grad():
        logit = model(**tokenizer(*PAIR, return_tensors="pt")).logits[0, 0]
    page = visitor.open(f"?model=cross{visitor.state(view='head', a=PAIR[0])}")
    told(page, "Layer 0 head 0 shown.")
    composer = page.get_by_role("region", name="Input")
    expect(composer).to_contain_text("This model scores pairs")
    page.get_by_label("Sentence pair").check()
    page.get_by_label("Second text of the pair").fill(PAIR[1])
    expect(composer.get_by_text(f"{torch.sigmoid(logit):.4f}")).to_be_visible()
    expect(composer).not_to_contain_text("This model")
    visitor.expected = ("status of 424", "status of 422")  # the sample results are too long
    turn(page, "Why alike?")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("/explain does not explain cross")
    expect(alert.get_by_role("button", name="Try again")).to_have_count(0)
    alert.get_by_role("button", name="Open Search").click()
    expect(page.get_by_role("tab", name="Search")).to_have_attribute("aria-selected", "true")
