"""Search with models of other kinds, one service for all; numbers equal the API's replies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from model.artifact.manifest import Artifact
from tests.journeys.conftest import running
from tests.journeys.dashboard import axe
from tests.journeys.dashboard.between import told, view
from tests.journeys.dashboard.browser import VIEWER, Visitor, rows_of
from tests.journeys.dashboard.test_search import results, score_of
from tests.model.hybrid_checkpoints import write_hybrid
from tests.model.task_checkpoints import write_sparse_checkpoint

pytestmark = pytest.mark.e2e
QUERY, DOCUMENTS = "the cat a b", ["b a the the cat z y", "the cat", "x y z"]


@pytest.fixture(scope="module")
def models(
    exported: Callable[..., Artifact],
    cross_checkpoint: Path,
    late_artifact: Artifact,
    tiny_checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Artifact]:
    """Return one small model of each kind, by its name in the service."""
    folder = tmp_path_factory.mktemp("kinds")
    return {
        "cross": exported(cross_checkpoint, "cross"),
        "late": late_artifact,
        "sparse": exported(write_sparse_checkpoint(folder / "sparse"), "splade-max"),
        "hybrid": exported(write_hybrid(folder / "hybrid"), "hybrid"),
        "prompted": exported(tiny_checkpoint, "tiny"),
    }


@pytest.fixture(scope="module")
def visitor(
    browser: Browser, models: dict[str, Artifact], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Visitor]:
    """Yield a visitor of a service of all models; one of them has a prompt."""
    tables = [f"[model.{name}]\nartifact = '{one.folder}'" for name, one in models.items()]
    config = tmp_path_factory.mktemp("config") / "headscope.toml"
    config.write_text("\n".join([*tables, 'prompts = { web = "the a: " }']))
    with running("--config", str(config)) as url, browser.new_context(**VIEWER) as context:
        visitor = Visitor(context, url)
        yield visitor
        visitor.check()
        visitor.close()


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


def test_a_cross_encoder_by_occlusion(visitor: Visitor) -> None:
    page = opened(visitor, "cross")
    expect(view(page)).to_contain_text("Tokens are shaded by what the score loses without them")
    reply = asked(visitor, "cross", explain="tokens")
    for shown, expected in zip(results(page), reply["results"], strict=True):
        assert score_of(shown) == pytest.approx(expected["score"], abs=6e-5)
        words = [one.get_attribute("data-says") for one in shown.locator("button.mark").all()]
        values = [float((word or "").split(", ")[1]) for word in words]
        assert values == pytest.approx(expected["shares"], abs=6e-5)


def test_matches_and_terms(visitor: Visitor) -> None:
    for kind, caption in (("late", "Matches of result"), ("sparse", "Terms of result")):
        page = opened(visitor, kind, picks="0,1")
        expect(view(page).get_by_role("table", name=caption)).to_have_count(2)
        scores = {r["index"]: r["score"] for r in asked(visitor, kind)["results"]}
        tables = rows_of(page, "table.matches")
        inputs = [[QUERY, DOCUMENTS[number]] for number in (0, 1)]
        found = asked(visitor, kind, "explain", inputs=inputs)["results"]
        expected = [
            sorted((m["score"] for m in one["matches"]), reverse=True)[:12] for one in found
        ]
        every = [*itertools.chain(*expected)]
        assert [float(row[-1]) for row in tables] == pytest.approx(every, abs=6e-5)
        for number, one in enumerate(found):
            assert sum(m["score"] for m in one["matches"]) == pytest.approx(
                scores[number], abs=1e-4
            )


def test_three_parts_and_ranks_in_two_models(visitor: Visitor) -> None:
    other = "cross"
    page = opened(visitor, "hybrid")
    reply = asked(visitor, "hybrid")
    for shown, expected in zip(results(page), reply["results"], strict=True):
        parts = expected["parts"]
        expect(shown).to_contain_text(
            f"dense {parts['dense']:.4f} · sparse {parts['sparse']:.4f} · "
            f"multi-vector {parts['multivector']:.4f}"
        )
    expect(view(page)).not_to_contain_text("“”")  # the model's own prompts are empty
    page.get_by_label("Compare with model").select_option(label=other)
    expect(page.get_by_role("heading", name="Ranks in two models")).to_be_visible()
    order = [one["index"] for one in asked(visitor, "cross")["results"]]
    for shown, expected in zip(results(page), reply["results"], strict=True):
        rank = order.index(expected["index"]) + 1
        expect(shown).to_contain_text(f"rank {rank} in {other}")
    expect(page.locator("bump-chart").get_by_role("img")).to_be_visible()
    assert axe.violations(page) == []


def test_prompts_are_seen_and_chosen(visitor: Visitor) -> None:
    page = opened(visitor, "prompted")
    badge = view(page).locator(".badge", has_text="have no prompt")
    expect(badge).to_contain_text("4 texts have no prompt")
    page.get_by_label("Prompt of the query").select_option(label="web")
    page.get_by_label("Prompt of the results").select_option(label="web")
    expect(badge).to_have_count(0)
    expect(view(page).locator(".fact", has_text="the a: ")).to_have_count(2)
    names = {"query_prompt_name": "web", "document_prompt_name": "web"}
    scores = [one["score"] for one in asked(visitor, "prompted", **names)["results"]]
    assert [score_of(one) for one in results(page)] == pytest.approx(scores, abs=6e-5)
    page.get_by_label("Prompt of the results").select_option(label="none")
    told(page, "3 results ranked and explained.")
    expect(view(page).locator(".fact", has_text="the a: ")).to_have_count(1)
    assert "dprompt=" in page.url
