"""`POST /rank` over HTTP: fields, refusals, and the size of replies."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from model.artifact.manifest import Artifact
from service.api.native.rank import MOST_DOCUMENTS
from tests.service.api.tei.tasks import LABELS, RANKS
from tests.service.harness import assert_problem, serving
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio
BODY: dict[str, Any] = {"query": "a cat", "documents": ["a dog", "the cat", "a red car"]}


async def test_the_best_documents_without_an_explanation(client: httpx.AsyncClient) -> None:
    answer = await client.post("/rank", json=BODY | {"top_n": 2})
    reply = answer.json()
    assert reply.keys() == {"model", "backend", "scoring", "prompts", "results", "usage"}
    assert [result.keys() for result in reply["results"]] == [{"index", "score"}] * 2
    assert reply["usage"]["inputs"] == 3
    assert reply["usage"]["tokens"] == int(answer.headers["x-compute-tokens"])
    every = (await client.post("/rank", json=BODY | {"top_n": 9})).json()["results"]
    assert every[:2] == reply["results"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"documents": []}, "documents: "),
        ({"documents": ["a"] * (MOST_DOCUMENTS + 1)}, "documents: "),
        ({"documents": ["a", 1]}, "documents.1: "),
        ({"query": None}, "query: "),
        ({"top_n": 0}, "top_n: "),
        ({"explain": "all"}, "explain: "),
        ({"compare": [0, 1]}, 'compare and top_words apply to explain "contrast"'),
        ({"top_words": 3}, 'compare and top_words apply to explain "contrast"'),
        ({"explain": "contrast", "compare": [0]}, "compare: "),
        ({"explain": "contrast", "compare": [1, 1]}, "compare: "),
        ({"explain": "contrast", "compare": [0, 3]}, "compare[1]: 3 is not in 0 … 2"),
        ({"explain": "contrast", "compare": [-1, 0]}, "compare.0: "),
        ({"explain": "contrast", "top_words": 65}, "top_words: "),
        ({"explain": "contrast", "documents": ["a"]}, "at least 2, and there is 1"),
        ({"inputs": "a"}, "inputs: "),
        ({"query_without": [[0, 1]], "explain": "tokens"}, 'apply to explain "none"'),
        ({"query_without": [[2, 2]]}, "query_without[0] is [2, 2): send spans of [0, 5)"),
        ({"query_without": [[2, 6]]}, "query_without[0] is [2, 6): send spans of [0, 5)"),
        ({"query_without": [[2, 5], [0, 1]]}, "query_without[1] is [0, 1): send spans"),
        ({"query_without": [[1, 2]]}, "query_without[0] is [1, 2), which has no token"),
        ({"query_without": [[0]]}, "query_without.0: "),
        ({"documents_without": [[[0, 1]]]}, "documents_without has 1 lists, and there are 3"),
        ({"documents_without": [[], [[0, 9]], []]}, "documents_without[1][0] is [0, 9)"),
        ({"query_prompt_name": "none"}, "unknown prompt_name"),
    ],
)
async def test_refusals(client: httpx.AsyncClient, changes: dict[str, Any], says: str) -> None:
    assert_problem(await client.post("/rank", json=BODY | changes), 422, says)


async def test_the_text_that_is_too_long_is_named(client: httpx.AsyncClient) -> None:
    for changes, says in [
        ({"documents": ["a", "cat " * 600]}, "documents[1] has 602 tokens"),
        ({"query": "cat " * 600}, "the query has 602 tokens"),
    ]:
        answer = await client.post("/rank", json=BODY | changes)
        assert_problem(answer, 422, says, "Tokenizer")


async def test_texts_are_cut_on_request_and_that_is_a_warning(client: httpx.AsyncClient) -> None:
    body = BODY | {"documents": ["a", "cat " * 600], "truncate": True, "explain": "tokens"}
    reply = (await client.post("/rank", json=body)).json()
    assert reply["warnings"] == {"truncated": 1}
    cut = {result["index"]: result["truncated"] for result in reply["results"]}
    assert cut == {0: False, 1: True}


async def test_a_reply_that_would_be_too_large_is_not_computed(artifact: Artifact) -> None:
    async with serving(artifact, fake_of(artifact), max_response_bytes=2_000) as client:
        assert (await client.post("/rank", json=BODY)).status_code == 200
        for explain in ("tokens", "contrast"):
            answer = await client.post("/rank", json=BODY | {"explain": explain})
            assert_problem(answer, 413, "fewer or shorter documents")


async def test_the_first_model_that_ranks_answers(artifact: Artifact) -> None:
    models = [variant(artifact, "a", 8, LABELS), variant(artifact, "b", 8, RANKS)]
    async with serving(models, [fake_of(model) for model in models]) as client:
        reply = (await client.post("/rank", json=BODY)).json()
        assert (reply["model"], reply["scoring"]) == ("b", "logit")
