"""Ranks in every dialect's form, with sentence-transformers' scores."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from tests.service.api.rankers import QUERY, TEXTS, Ranker
from tests.service.api.tei import tasks
from tests.service.api.tei.tasks import RANKS, ScoringEngine, serving_task
from tests.service.harness import Client

pytestmark = pytest.mark.anyio


class Form(NamedTuple):
    """Requests and replies of a dialect."""

    path: str
    raw: dict[str, Any]
    """Fields that ask for logits."""
    envelope: set[str]
    """Fields of a reply, without warnings; empty for a bare list."""
    document: Callable[[str, bool], dict[str, Any]]
    """Function that returns a result's own fields by its text, and whether it is asked for."""
    asks: str = "return_documents"
    """Field that asks for the texts."""
    fields: Mapping[str, Any] = MappingProxyType({})
    """Fields that tell the dialect from others of its path."""
    texts: str = "documents"
    score: str = "relevance_score"


def as_object(text: str, asked: bool) -> dict[str, Any]:
    return {"document": {"text": text}} if asked else {}


RAW, LOGITS = {"raw_scores": True}, {"use_activation": False}
ENVELOPE = {"id", "model", "usage", "results"}
VLLM: dict[str, Any] = {"fields": {"truncate_prompt_tokens": -1}}
FORMS = {
    "TEI": Form(
        *("/rerank", RAW, set(), lambda text, asked: {"text": text} if asked else {}),
        asks="return_text", texts="texts", score="score",
    ),
    "Infinity": Form(
        *("/rerank", RAW, ENVELOPE | {"object", "created"}),
        lambda text, asked: {"document": text.strip() if asked else None},
    ),
    "Cohere": Form("/v2/rerank", RAW, {"id", "results", "meta"}, lambda *_: {}),
    "Jina": Form("/v1/rerank", RAW, ENVELOPE | {"meta"}, as_object),
    **{
        f"vLLM {path}": Form(path, LOGITS, ENVELOPE, lambda text, _: as_object(text, True), **VLLM)
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
    },
}  # fmt: skip


async def ranked(client: Client, form: Form, **fields: Any) -> tuple[Any, list[Any]]:
    """Return a reply whose envelope was checked, and its results."""
    body = {"query": QUERY, form.texts: TEXTS, "model": "other", **form.fields, **fields}
    answer = await client.post(form.path, json=body)
    assert answer.status_code == 200, answer.text
    reply, tokens = answer.json(), int(answer.headers["x-compute-tokens"])
    if not form.envelope:
        return reply, reply
    assert reply.keys() - {"warnings"} == form.envelope
    assert reply.get("model", answer.headers["x-model"]) == answer.headers["x-model"]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    assert reply.get("usage", usage) == usage
    assert reply.get("object", "rerank") == "rerank"
    return reply, reply["results"]


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("name", FORMS)
async def test_documents_are_ranked_as_sentence_transformers_scores_them(
    ranking: Client, ranker: Ranker, name: str, raw: bool
) -> None:
    """Also one that is far too long, which is cut."""
    form, pairs = FORMS[name], [(QUERY, text) for text in TEXTS]
    scores = ranker.logits(pairs) if raw else ranker.scores(QUERY, TEXTS)
    order = np.argsort(-scores, kind="stable").tolist()
    zero = [(0, True)] if name.startswith("vLLM") else []
    for most, asked in ((None, False), (2, True), (99, True), *zero):
        fields = {"top_n": most, form.asks: asked} | (form.raw if raw else {})
        _, results = await ranked(ranking, form, **fields)
        wanted = order if form.texts == "texts" else order[: most or None]
        assert results == [
            {"index": index, form.score: pytest.approx(float(scores[index]), abs=1e-4)}
            | form.document(TEXTS[index], asked)
            for index in wanted
        ]


@pytest.mark.parametrize(("name", "version"), [("Cohere", "2"), ("Jina", "1")])
async def test_ids_and_meta_are_coheres(ranking: Client, name: str, version: str) -> None:
    replies = [(await ranked(ranking, FORMS[name]))[0] for _ in range(2)]
    assert len({uuid.UUID(reply["id"]) for reply in replies}) == 2
    meta = {"api_version": {"version": version}, "billed_units": {"search_units": 1}}
    assert replies[0]["meta"].items() >= meta.items()


async def test_jina_returns_documents_by_default(ranking: Client) -> None:
    _, results = await ranked(ranking, FORMS["Jina"], top_n=1)
    assert results[0]["document"].keys() == {"text"}


class Saturated(ScoringEngine):
    """Engine whose logits are all so large that their sigmoid is 1.0 in float32."""

    def expected(self, task: Any) -> Any:
        output = super().expected(task)
        if output.scores is not None:
            output.scores = output.scores + np.float32(30)
        return output


async def test_saturated_scores_keep_the_order_of_their_logits(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every score is 1.0 in float32; the largest logit is still first, also of the first few."""
    monkeypatch.setattr(tasks, "ScoringEngine", Saturated)
    async with serving_task(artifact, RANKS) as client:
        for form in FORMS.values():
            _, by_logit = await ranked(client, form, **form.raw)
            logits = [one[form.score] for one in by_logit]
            assert logits == sorted(logits, reverse=True)
            assert min(logits) > 20
            assert len({*logits}) > 3
            _, results = await ranked(client, form)
            found = [(one["index"], one[form.score]) for one in results]
            assert found == [(one["index"], 1.0) for one in by_logit]


@pytest.mark.parametrize("name", ["Cohere", "Jina", "vLLM /rerank"])
async def test_only_the_first_tokens_of_a_document_are_ranked(
    ranking: Client, ranker: Ranker, name: str
) -> None:
    documents = ["the cat . x y z", "a b", "c b a the cat"]
    scores = ranker.scores(QUERY, ["the cat .", "a b", "c b a"])
    objects = [{"text": one} for one in documents]
    _, results = await ranked(ranking, FORMS[name], documents=objects, max_tokens_per_doc=3)
    found = {one["index"]: one["relevance_score"] for one in results}
    assert [found[index] for index in range(3)] == pytest.approx(scores.tolist(), abs=1e-4)
    shown = {one["document"]["text"] for one in results if "document" in one}
    assert shown <= {*documents}
