"""Rerank requests in vLLM's form, which three paths share with other dialects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.api.vllm.rerank import FORM_FIELDS
from tests.service.api.rankers import QUERY, TEXTS, Ranker
from tests.service.harness import Client

pytestmark = pytest.mark.anyio
PATHS = ["/rerank", "/v1/rerank", "/v2/rerank"]
BODY: dict[str, Any] = {"query": QUERY, "documents": TEXTS, "truncate_prompt_tokens": -1}


@pytest.mark.parametrize("path", PATHS)
async def test_ranks_are_a_cross_encoders_with_their_documents(
    ranking: Client, ranker: Ranker, path: str
) -> None:
    """The form of vLLM's `RerankResponse`; sentence-transformers is the oracle of the scores."""
    scores = ranker.scores(QUERY, TEXTS)
    order = np.argsort(-scores, kind="stable").tolist()
    for top_n, count in ((None, len(TEXTS)), (0, len(TEXTS)), (2, 2)):
        answer = await ranking.post(path, json=BODY | {"top_n": top_n})
        reply = answer.json()
        assert answer.status_code == 200, answer.text
        assert reply.keys() >= {"id", "model", "usage", "results"}
        assert reply["usage"].keys() == {"prompt_tokens", "total_tokens"}
        assert [one["index"] for one in reply["results"]] == order[:count]
        for one in reply["results"]:
            assert one["relevance_score"] == pytest.approx(float(scores[one["index"]]), abs=1e-4)
            assert one["document"] == {"text": TEXTS[one["index"]]}


async def test_logits_are_given_without_activation(ranking: Client, ranker: Ranker) -> None:
    logits = ranker.logits([(QUERY, text) for text in TEXTS])
    reply = (await ranking.post("/v1/rerank", json=BODY | {"use_activation": False})).json()
    for one in reply["results"]:
        assert one["relevance_score"] == pytest.approx(float(logits[one["index"]]), abs=1e-4)


async def test_a_document_is_cut_to_its_own_number_of_tokens(
    ranking: Client, ranker: Ranker
) -> None:
    body = BODY | {"documents": ["a b c d e f"], "max_tokens_per_doc": 2}
    (one,) = (await ranking.post("/rerank", json=body)).json()["results"]
    assert one["relevance_score"] == pytest.approx(
        float(ranker.scores(QUERY, ["a b"])[0]), abs=1e-4
    )
    assert one["document"] == {"text": "a b c d e f"}


@pytest.mark.parametrize("path", PATHS)
async def test_texts_that_are_too_long_are_refused_as_vllm_does(ranking: Client, path: str) -> None:
    """Errors have vLLM's form; `truncation_side` selects this form, `user` does not."""
    body = {"query": QUERY, "documents": ["q " * 600], "truncation_side": "right"}
    refused = await ranking.post(path, json=body)
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "BadRequestError")
    body = {"query": QUERY, "documents": ["q " * 600], "truncation_side": None, "user": "u"}
    assert (await ranking.post(path, json=body)).status_code == 200


@pytest.mark.parametrize("name", sorted(FORM_FIELDS))
async def test_each_field_of_vllm_alone_tells_the_form(ranking: Client, name: str) -> None:
    """Unsupported fields are refused in vLLM's form; fields without effect are ignored."""
    reply = await ranking.post("/rerank", json=BODY | {name: "x" * 2000})
    if reply.status_code == 200:
        assert reply.json()["results"][0]["document"].keys() == {"text"}
        assert name in ("request_id", "cache_salt")
    else:
        assert (reply.status_code, reply.json()["error"]["type"]) == (400, "BadRequestError")
        assert name in reply.json()["error"]["message"]
