"""`/rerank` of three dialects: the body decides the form of reply and errors."""

from __future__ import annotations

from typing import Any

import pytest

from model.artifact.manifest import Artifact
from tests.service.api.tei.tasks import RANKS, serving_task
from tests.service.harness import Client

pytestmark = pytest.mark.anyio
TEI = {"error", "error_type"}
INFINITY = {"error", "detail"}


async def test_both_rank_alike(ranking: Client) -> None:
    """A body with both lists is in the form that was there first."""
    texts = {"texts": ["a b", "the cat"]}
    documents = {"documents": ["a b", "the cat"]}
    tei = (await ranking.post("/rerank", json={"query": "the"} | texts)).json()
    infinity = (await ranking.post("/rerank", json={"query": "the"} | documents)).json()
    both = (await ranking.post("/rerank", json={"query": "the"} | texts | documents)).json()
    assert tei == both
    assert [(one["index"], one["score"]) for one in tei] == [
        (one["index"], one["relevance_score"]) for one in infinity["results"]
    ]


@pytest.mark.parametrize(
    ("body", "form"),
    [
        ({"query": "a", "documents": 1}, INFINITY),
        ({"query": "a", "texts": 1}, TEI),
        ({"query": "a"}, TEI),
        ({"query": "a", "texts": 1, "documents": ["a"]}, TEI),
        (["documents"], TEI),
    ],
)
async def test_errors_have_the_form_of_the_body(
    artifact: Artifact, body: Any, form: set[str]
) -> None:
    """Ambiguous bodies, and requests whose body is not read, get TEI's form."""
    async with serving_task(artifact, RANKS, api_keys="k") as client:
        key = {"authorization": "Bearer k"}
        refused = await client.post("/rerank", json=body, headers=key)
        assert (refused.status_code, refused.json().keys()) == (422, form)
        broken = await client.post("/rerank", content=b'{"documents"', headers=key)
        assert broken.json().keys() == TEI
        assert (await client.post("/rerank", json=body)).content == b""


async def test_what_is_refused_later_has_that_form_too(artifact: Artifact) -> None:
    async with serving_task(artifact, RANKS, max_response_bytes=128) as client:
        for name, nested in (("documents", True), ("texts", False)):
            refused = await client.post("/rerank", json={"query": "a", name: ["b"] * 9})
            assert refused.status_code == 413
            assert isinstance(refused.json()["error"], dict) == nested


async def test_the_document_has_all_forms(artifact: Artifact) -> None:
    async with serving_task(artifact, RANKS) as client:
        route = (await client.get("/openapi.json")).json()["paths"]["/rerank"]["post"]
    schema = route["requestBody"]["content"]["application/json"]["schema"]
    names = {one["$ref"].rpartition("/")[2] for one in schema["anyOf"]}
    assert names == {"RerankRequest", "InfinityRerankRequest", "VllmRerankRequest"}
