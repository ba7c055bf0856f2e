"""A model with an adapter for each task, over HTTP, against transformers with the adapter merged.

The reference is transformers' model of each task; for what transformers does not compute, it is the
export of the merged checkpoint, which has no adapters.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from model.artifact.manifest import Artifact
from tests.model.checkpoints import edit_json
from tests.model.jina_v3 import INSTRUCTIONS, TASKS, Reference, served_reference, write_served
from tests.service.harness import serving

pytestmark = pytest.mark.anyio
TEXTS = ("The river runs by the house", "water", "a ship looks at the hill, 20 times a day")


@pytest.fixture(scope="module")
def reference() -> Reference:
    return served_reference()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_served(tmp_path_factory.mktemp("jina") / "v3")


@pytest.fixture(scope="module")
def of_tasks(exported: Callable[..., Artifact], checkpoint: Path) -> Artifact:
    return exported(checkpoint, "jina-v3")


@pytest.fixture(scope="module")
async def client(of_tasks: Artifact, anyio_backend: str) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(of_tasks) as client:
        yield client


@pytest.fixture(scope="module")
async def merged(
    exported: Callable[..., Artifact],
    reference: Reference,
    checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
    anyio_backend: str,
) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the checkpoint of `text-matching`, which has no instruction."""
    folder = tmp_path_factory.mktemp("merged") / "v3"
    write_served(folder)
    reference.of("text-matching").save_pretrained(folder)
    edit_json(folder / "config.json", lora_adaptations=None)
    async with serving(exported(folder, "jina-v3-merged")) as client:
        yield client


async def encoded(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    reply = await client.post("/encode", json=body)
    assert reply.status_code == 200, reply.text
    result: dict[str, Any] = reply.json()
    return result


async def test_requests_of_all_tasks_share_batches_and_equal_transformers(
    client: httpx.AsyncClient, checkpoint: Path, reference: Reference
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tasks = (None, *TASKS)
    fields = [{} if task is None else {"task": task} for task in tasks]
    replies = await asyncio.gather(
        *(encoded(client, inputs=list(TEXTS), **own) for own in fields),
        *(client.post("/attention", json={"inputs": list(TEXTS), **own}) for own in fields),
    )
    vectors = []
    for task, of_task, maps in zip(tasks, replies[:4], replies[4:], strict=True):
        model = reference.of(task)
        results = zip(TEXTS, of_task["results"], maps.json()["results"], strict=True)
        for text, result, attended in results:
            prompt = INSTRUCTIONS[task] if task else ""
            ids = tokenizer(prompt + text, return_tensors="pt")["input_ids"]
            with torch.no_grad():
                theirs = model(ids, output_attentions=True)
            state = theirs.last_hidden_state[0].numpy()
            pooled = state.mean(axis=0)
            assert result["token_ids"] == ids[0].tolist()
            assert not any(result["segment_ids"])
            np.testing.assert_allclose(result["embeddings"], state, atol=2e-5)
            np.testing.assert_allclose(result["pooled"], pooled / np.linalg.norm(pooled), atol=2e-6)
            expected = torch.cat(theirs.attentions).numpy()
            np.testing.assert_allclose(attended["attention"], expected, atol=5e-6)
            vectors.append(result["pooled"])
    apart = [np.dot(vectors[0], vectors[3 * number]) for number in (1, 2, 3)]
    assert max(apart) < 0.99, "the tasks hardly differ, so that no fault of them would show"


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/encode", {"layer": 1, "outputs": ["pooled"], "pooling": "max"}),
        ("/encode", {"layers": [1, 2], "outputs": ["tokens"]}),
        ("/encode", {"spans": [[[0, 9]]], "outputs": ["pooled"]}),
        ("/encode", {"overflow": "windows", "chunk": {"by": "tokens", "size": 4, "overlap": 1}}),
        ("/attention", {"include": ["norms", "stats", "rollout"]}),
        ("/attention", {"ablate": [{"layer": 0, "head": 1}]}),
        ("/attention/scores", {"layer": 1, "head": 2}),
        ("/explain", {"include": ["pairs", "occlusion", "decomposition"]}),
    ],
    ids=str,
)
async def test_all_of_a_task_equals_the_merged_checkpoint(
    client: httpx.AsyncClient, merged: httpx.AsyncClient, route: str, body: dict[str, Any]
) -> None:
    inputs = [list(TEXTS[:2])] if route == "/explain" else [TEXTS[0]]
    own = {"inputs": inputs, **body}
    found, expected = await asyncio.gather(
        client.post(route, json=own | {"task": "text-matching"}), merged.post(route, json=own)
    )
    assert (found.status_code, expected.status_code) == (200, 200), found.text
    compare(found.json()["results"], expected.json()["results"])


def compare(found: Any, expected: Any) -> None:
    """Compare two JSON values, whose numbers may differ by rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected.keys() - {"decomposition_error", "completeness_error"}:
            compare(found[name], expected[name])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            compare(*pair)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
    else:
        assert found == expected


async def test_dialects_choose_a_task(client: httpx.AsyncClient) -> None:
    query = await encoded(client, inputs=TEXTS[0], task="retrieval.query", outputs=["pooled"])
    expected = query["results"][0]["pooled"]
    bodies = {
        "/encode": {"inputs": TEXTS[0], "prompt_name": "retrieval.query", "outputs": ["pooled"]},
        "/embed": {"inputs": TEXTS[0], "prompt_name": "retrieval.query"},
        "/v1/embeddings": {"input": TEXTS[0], "model": "m", "task": "retrieval.query"},
        "/v2/embed": {
            "texts": [TEXTS[0]],
            "model": "m",
            "input_type": "search_query",
            "embedding_types": ["float"],
        },
    }
    for route, body in bodies.items():
        reply = (await client.post(route, json=body)).json()
        found = {
            "/encode": lambda r: r["results"][0]["pooled"],
            "/embed": lambda r: r[0],
            "/v1/embeddings": lambda r: r["data"][0]["embedding"],
            "/v2/embed": lambda r: r["embeddings"]["float"][0],
        }[route](reply)
        np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=route)


async def test_a_prompt_name_beside_a_task_replaces_its_instruction(
    client: httpx.AsyncClient, reference: Reference, checkpoint: Path
) -> None:
    reply = await encoded(client, inputs=TEXTS[0], task="retrieval.query", prompt_name="")
    ids = AutoTokenizer.from_pretrained(checkpoint)(TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        state = reference.of("retrieval.query")(ids).last_hidden_state[0].numpy()
    np.testing.assert_allclose(reply["results"][0]["embeddings"], state, atol=2e-5)


async def test_late_chunking_of_a_task_equals_transformers(
    client: httpx.AsyncClient, reference: Reference, checkpoint: Path
) -> None:
    """The instruction stands before the first chunk alone, and belongs to it, as it is pooled."""
    chunks = [TEXTS[0], TEXTS[1]]
    body = {"input": chunks, "model": "m", "task": "retrieval.passage", "late_chunking": True}
    reply = await client.post("/v1/embeddings", json=body)
    assert reply.status_code == 200, reply.text
    prompt = INSTRUCTIONS["retrieval.passage"]
    tokens = AutoTokenizer.from_pretrained(checkpoint)(
        prompt + " ".join(chunks), return_tensors="pt", return_offsets_mapping=True
    )
    with torch.no_grad():
        state = reference.of("retrieval.passage")(tokens["input_ids"]).last_hidden_state[0].numpy()
    offsets = tokens["offset_mapping"][0].numpy() - len(prompt)
    first = 0
    for chunk, found in zip(chunks, reply.json()["data"], strict=True):
        last = first + len(chunk)
        inside = (offsets[:, 0] < last) & (offsets[:, 1] > first)
        pooled = state[inside].mean(axis=0)
        np.testing.assert_allclose(found["embedding"], pooled / np.linalg.norm(pooled), atol=2e-6)
        first = last + 1


@pytest.mark.parametrize(
    ("route", "body", "detail"),
    [
        ("/encode", {"inputs": "a", "task": "code"}, "this model has retrieval.query, retrieval.p"),
        ("/attention", {"inputs": "a", "task": "code"}, "task: unknown; this model has"),
        ("/v1/embeddings", {"input": "a", "model": "m", "task": "code"}, "its tasks are retrieval"),
        ("/v1/embeddings", {"input": "a", "model": "m", "task": "separation"}, "its tasks are"),
    ],
)
async def test_an_unknown_task_is_refused_with_the_known_ones(
    client: httpx.AsyncClient, route: str, body: dict[str, Any], detail: str
) -> None:
    reply = await client.post(route, json=body)
    assert reply.status_code in (400, 422)
    assert detail in reply.text


async def test_without_a_task_the_reply_has_a_warning(client: httpx.AsyncClient) -> None:
    reply = await encoded(client, inputs=list(TEXTS), outputs=["pooled"])
    assert reply["warnings"] == {"prompt_missing": 3}
    info = (await client.get("/info")).json()
    assert info["tasks"] == list(TASKS)


async def test_a_model_without_adapters_refuses_a_task(merged: httpx.AsyncClient) -> None:
    reply = await merged.post("/encode", json={"inputs": "a", "task": "retrieval.query"})
    assert reply.status_code == 422
    assert "this model has no tasks" in reply.json()["detail"]
