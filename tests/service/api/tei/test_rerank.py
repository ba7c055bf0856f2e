"""`POST /rerank`, `/` and `/tokenize` in TEI's form, and errors wherever they arise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sentence_transformers import MultiVectorEncoder
from tokenizers import Tokenizer

from model.artifact.manifest import TOKENIZER, Artifact
from tests.model.late_checkpoints import DOCUMENTS
from tests.model.late_checkpoints import QUERY as LATE_QUERY
from tests.service.api.tei.tasks import LABELS, RANKS, SPARSE, TOKENS, serving_task
from tests.service.harness import Client, assert_problem, serving
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio


QUERY, TEXTS = "what is it", ["it is a cat", "", 'a "dog"\n', "nothing", "what is it"]
LATE = LATE_QUERY, DOCUMENTS


@pytest.fixture(scope="module")
async def late(late_artifact: Artifact, anyio_backend: str) -> AsyncIterator[Client]:
    """Return a late-interaction model, whose engine has passed the golden texts."""
    async with serving(late_artifact, allow_unverified=False) as client:
        yield client


@pytest.mark.parametrize("truncate", [False, True])
async def test_max_sim_is_sentence_transformers(
    late: Client, late_checkpoint: Path, truncate: bool
) -> None:
    """A text's score does not depend on its batch or on `raw_scores`."""
    query, texts = ("the cat a b c " * 3, [*DOCUMENTS, "x y z " * 9]) if truncate else LATE
    reference = MultiVectorEncoder(str(late_checkpoint), device="cpu")
    vectors = reference.encode_query([query]), reference.encode_document(texts)
    scores = reference.similarity(*vectors)[0].numpy()
    body = {"query": query, "texts": texts, "truncate": truncate, "return_text": True}
    found = (await late.post("/rerank", json=body)).json()
    assert [one["index"] for one in found] == np.argsort(-scores).tolist()
    for one in found:
        assert one["score"] == pytest.approx(float(scores[one["index"]]), abs=1e-4)
        assert one["text"] == texts[one["index"]]
    assert (await late.post("/rerank", json=body | {"raw_scores": True})).json() == found
    alone = await late.post("/rerank", json=body | {"texts": texts[:1]})
    assert alone.json()[0]["score"] == pytest.approx(float(scores[0]), abs=1e-4)
    assert int(alone.headers["x-compute-tokens"]) > 9


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"query": "a " * 7, "texts": ["b"]}, 422, "the query has 10 tokens; at most 9 fit"),
        ({"query": "a", "texts": ["b", "a " * 16]}, 422, "texts[1] has 19 tokens; at most 18 fit"),
        ({"query": "a", "texts": []}, 400, "texts: empty"),
    ],
)
async def test_what_does_not_fit_a_late_interaction_model(
    late: Client, body: dict[str, Any], status: int, says: str
) -> None:
    response = await late.post("/rerank", json=body | {"truncate": False})
    assert response.status_code == status
    assert says in response.json()["error"]


async def test_the_vectors_of_a_query_count_as_bytes_of_a_reply(late_artifact: Artifact) -> None:
    """The query's nine tokens have six numbers each; documents' vectors are not kept."""
    body = {"query": "a", "texts": ["b"]}
    for limit, status in ((4 * 6 * 9, 200), (4 * 6 * 9 - 1, 413)):
        async with serving(late_artifact, max_response_bytes=limit) as client:
            assert (await client.post("/rerank", json=body)).status_code == status


async def test_a_late_interaction_model_has_no_labels(late: Client) -> None:
    response = await late.post("/predict", json={"inputs": "a"})
    assert response.status_code == 424
    assert "late has a task head for token vectors" in response.json()["error"]


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


@pytest.mark.parametrize(
    ("task", "path", "body"),
    [
        (None, "/embed", {"inputs": "a cat", "dimensions": 3}),
        (SPARSE, "/embed_sparse", {"inputs": "a cat"}),
        (LABELS, "/predict", {"inputs": ["a cat", "a dog"], "raw_scores": True}),
        (TOKENS, "/predict", {"inputs": "a cat", "aggregation": "none"}),
        (RANKS, "/rerank", {"query": "a", "texts": ["b", "c"], "return_text": True}),
    ],
)
async def test_it_is_the_route_of_the_kind(
    artifact: Artifact, task: Any, path: str, body: dict[str, Any]
) -> None:
    async with serving_task(artifact, task) as client:
        expected = await client.post(path, json=body)
        found = await client.post("/", json=body)
        assert (found.status_code, found.json()) == (200, expected.json())
        wrong = await client.post("/", json={"inputs": {}})
        assert wrong.json() == (await client.post(path, json={"inputs": {}})).json()
        assert wrong.status_code == 422
        assert (await client.get("/")).headers["content-type"].startswith("text/html")


async def test_the_dashboard_has_its_own_errors(artifact: Artifact) -> None:
    """A browser without a key gets the page; other requests get a message."""
    async with serving_task(artifact, None, api_keys="k") as client:
        assert (await client.get("/")).headers["content-type"].startswith("text/html")
        assert_problem(await client.post("/", json={"inputs": "a"}), 401, "Bearer")
        wrong = await client.post("/", json={}, auth=("", "k"))
        assert wrong.json().keys() == {"error", "error_type"}


TEXT = "naïve café 😀 ok"


@pytest.fixture(scope="module")
def tokenizer(artifact: Artifact) -> Tokenizer:
    """Return the checkpoint's tokenizer from the tokenizers library."""
    return Tokenizer.from_file(str(artifact.path(TOKENIZER)))


async def test_offsets_are_bytes(client: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    """Each token's bytes are its text; special ones have none."""
    answer = await client.post("/tokenize", json={"inputs": [TEXT, "a"]})
    found, _ = answer.json()
    encoding = tokenizer.encode(TEXT)
    assert [token["id"] for token in found] == encoding.ids
    first, *inner, last = found
    assert first == {"id": 101, "text": "[CLS]", "special": True, "start": None, "stop": None}
    assert last == {"id": 102, "text": "[SEP]", "special": True, "start": None, "stop": None}
    for token, (start, end) in zip(inner, encoding.offsets[1:-1], strict=True):
        shown = TEXT.encode()[token["start"] : token["stop"]].decode()
        assert shown == token["text"] == TEXT[start:end]
        assert token["special"] is False
    assert inner[-1]["stop"] == len(TEXT.encode()) > len(TEXT)


async def test_special_tokens_are_a_choice(client: httpx.AsyncClient) -> None:
    body = {"inputs": "a [SEP] b", "add_special_tokens": False}
    (found,) = (await client.post("/tokenize", json=body)).json()
    assert [token["text"] for token in found] == ["a", "[SEP]", "b"]
    body["inputs"] = [" ", " a"]
    nothing, found = (await client.post("/tokenize", json=body)).json()
    assert (nothing, [token["text"] for token in found]) == ([], ["a"])


async def test_a_prompt_is_part_of_the_text(artifact: Artifact) -> None:
    """Offsets then count in prompt and text together, as in TEI."""
    sentence = artifact.manifest.sentence.model_copy(update={"prompts": {"q": "é: "}})
    prompted = variant(artifact, "prompted", 128, sentence=sentence)
    async with serving(prompted, fake_of(prompted)) as client:
        body = {"inputs": "cat", "prompt_name": "q"}
        (found,) = (await client.post("/tokenize", json=body)).json()
    assert [(token["text"], token["start"], token["stop"]) for token in found[1:-1]] == [
        ("é", 0, 2),
        (":", 2, 3),
        ("cat", 4, 7),
    ]


async def test_any_length_is_tokenised_and_decoded(
    client: httpx.AsyncClient, tokenizer: Tokenizer
) -> None:
    """More tokens than the model takes, in a list that leaves the event loop."""
    texts = ["the cat is here " * 500, "a dog"] * 20
    answer = await client.post("/tokenize", json={"inputs": texts})
    ids = [[token["id"] for token in tokens] for tokens in answer.json()]
    assert ids == [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    assert len(ids[0]) > 2000
    beyond = {"inputs": "the cat is here " * 20_000}  # a single text is bounded by the body alone
    (tokens,) = (await client.post("/tokenize", json=beyond)).json()
    assert [token["id"] for token in tokens] == tokenizer.encode(beyond["inputs"]).ids
    decoded = await client.post("/decode", json={"ids": ids})
    assert decoded.json() == tokenizer.decode_batch(ids)


async def test_ids_become_text(client: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a cat").ids
    assert (await client.post("/decode", json={"ids": ids})).json() == ["a cat"]
    special = await client.post("/decode", json={"ids": [ids, ids], "skip_special_tokens": False})
    assert special.json() == ["[CLS] a cat [SEP]"] * 2


async def test_a_reply_has_its_limit(artifact: Artifact) -> None:
    async with serving(artifact, fake_of(artifact), max_response_bytes=1000) as client:
        assert (await client.post("/tokenize", json={"inputs": "a b"})).status_code == 200
        assert (await client.post("/tokenize", json={"inputs": "a " * 20})).status_code == 413
        assert (await client.post("/decode", json={"ids": [1997] * 400})).status_code == 413


BODY = {"query": "a", "texts": ["b", "c"]}


async def test_errors_before_and_in_a_route(artifact: Artifact) -> None:
    key = {"authorization": "Bearer k"}
    async with serving_task(artifact, RANKS, api_keys="k", max_body_bytes=1000) as client:
        as_json = key | {"content-type": "application/json"}
        refused = {
            400: await client.post("/rerank", headers=as_json, content=b"{"),
            405: await client.get("/rerank", headers=key),
            413: await client.post("/rerank", headers=as_json, content=b"x" * 1001),
            415: await client.post("/rerank", headers=key, content=b"{}"),
        }
        keyless = await client.post("/rerank", json={})
    for status, response in refused.items():
        assert response.status_code == status
        assert response.json().keys() == {"error", "error_type"}
    assert keyless.status_code == 401
    assert keyless.content == b""
    assert keyless.headers["www-authenticate"].startswith("Bearer")
