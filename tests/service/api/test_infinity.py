"""Requests, replies and errors in Infinity's form, and its own OpenAPI document."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from sentence_transformers import SentenceTransformer

from model.artifact.manifest import Artifact
from model.numerics.task_head import TaskConfig
from service.api.infinity import MAX_CHARACTERS, InfinityRequest, Text, capabilities, envelope
from service.inference.timings import Timings
from tests.service.api.rankers import QUERY, TEXTS
from tests.service.api.tei.tasks import LABELS, RANKS, SPARSE, TOKENS, scores_of, serving_task
from tests.service.harness import Client, serving
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio


EMBEDDED = ["What is Deep Learning?", "naïve café 😀", "word " * 600, ""]


@pytest.fixture(scope="module")
def expected(small_checkpoint: Path) -> np.ndarray:
    """Return unit vectors by sentence-transformers, as Infinity does; long texts are truncated."""
    model = SentenceTransformer(str(small_checkpoint), device="cpu")
    vectors: np.ndarray = model.encode(EMBEDDED, normalize_embeddings=True)
    return vectors


async def vectors(client: Client, **fields: Any) -> np.ndarray:
    """Check the form of a reply, and return its vectors."""
    answer = await client.post("/embeddings", json={"input": EMBEDDED, **fields})
    assert answer.status_code == 200, answer.text
    reply = answer.json()
    assert reply.keys() - {"warnings"} == {"object", "data", "model", "usage", "id", "created"}
    assert reply["object"] == "list"
    tokens = int(answer.headers["x-compute-tokens"])
    assert reply["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert [one["index"] for one in reply["data"]] == list(range(len(reply["data"])))
    assert all(one.keys() == {"object", "embedding", "index"} for one in reply["data"])
    found = [one["embedding"] for one in reply["data"]]
    if isinstance(found[0], str):
        found = [np.frombuffer(base64.b64decode(one), "<f4") for one in found]
    return np.array(found, np.float32)


async def test_vectors_are_sentence_transformers(client: Client, expected: np.ndarray) -> None:
    """`dimensions` slices unit vectors and does not normalise again; 0 is all of them."""
    found = await vectors(client, modality="text", user="u", model="default/not-specified")
    np.testing.assert_allclose(found, expected, atol=2e-5)
    for size in (0, 5, 128):
        fields = {"dimensions": size, "encoding_format": "base64"}
        np.testing.assert_array_equal(await vectors(client, **fields), found[:, : size or None])
    assert np.linalg.norm(found[:, :5], axis=1).max() < 0.9
    np.testing.assert_allclose(
        await vectors(client, input=f" {EMBEDDED[0]}\n"), found[:1], atol=1e-6
    )


async def test_prompts_are_not_infinitys(artifact: Artifact) -> None:
    """Texts get no prompt, even if the checkpoint has a default prompt."""
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    sentence = artifact.manifest.sentence.model_copy(update=prompts)
    changed = variant(artifact, "prompted", 8, sentence=sentence)
    async with serving(changed, fake_of(changed)) as client:
        answer = await client.post("/embeddings", json={"input": "a b"})
    assert answer.json()["usage"]["total_tokens"] == 4


async def test_the_name_chooses_a_model(artifact: Artifact) -> None:
    artifacts = [variant(artifact, "a", 8), variant(artifact, "b", 16)]
    async with serving(artifacts, [fake_of(one) for one in artifacts]) as client:
        for name, size in (("b", 16), ("a", 8), ("default/not-specified", 8)):
            answer = await client.post("/embeddings", json={"input": "a", "model": name})
            assert len(answer.json()["data"][0]["embedding"]) == size
            assert answer.headers["x-model"] == answer.json()["model"]
        unknown = await client.post("/embeddings", json={"input": "a", "model": "c"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, 400)


CLASSIFIED = ["what is it", "", "nothing"]


async def test_labels_are_sorted_as_transformers_pipeline_does(artifact: Artifact) -> None:
    """Softmax of several labels, whatever `raw_scores` says; a text that is too long is cut."""
    logits = torch.from_numpy(np.stack(scores_of(artifact, LABELS, CLASSIFIED)))
    scores = torch.softmax(logits, dim=1).numpy()
    async with serving_task(artifact, LABELS) as client:
        body = {"input": [*CLASSIFIED, "a " * 2000], "model": "default/not-specified"}
        answer = await client.post("/classify", json=body)
        raw = await client.post("/classify", json=body | {"raw_scores": True})
    reply = answer.json()
    assert reply.keys() - {"warnings"} == {"object", "data", "model", "usage", "id", "created"}
    assert (reply["object"], reply["model"], len(reply["data"])) == ("classify", "small", 4)
    assert reply["usage"]["total_tokens"] == int(answer.headers["x-compute-tokens"])
    assert raw.json()["data"] == reply["data"]
    for found, expected in zip(reply["data"], scores, strict=False):
        order = np.argsort(-expected)
        assert [one["label"] for one in found] == [LABELS.labels[index] for index in order]
        np.testing.assert_allclose([one["score"] for one in found], expected[order], atol=1e-6)


async def test_one_label_is_a_sigmoid(artifact: Artifact) -> None:
    (logits,) = scores_of(artifact, RANKS, ["a"])
    async with serving_task(artifact, RANKS) as client:
        (((one,),)) = (await client.post("/classify", json={"input": ["a"]})).json()["data"]
    assert one["score"] == pytest.approx(torch.sigmoid(torch.tensor(float(logits[0]))).item())


BODY = {"query": QUERY, "documents": TEXTS}


async def test_white_space_around_texts_is_left_out(ranking: Client) -> None:
    spaced = {"query": f" {QUERY}\n", "documents": [f"\t{text} " for text in TEXTS]}
    plain, other = [(await ranking.post("/rerank", json=one)).json() for one in (BODY, spaced)]
    assert plain["results"] == other["results"]


async def test_the_list_has_infinitys_form(artifact: Artifact) -> None:
    artifacts = [variant(artifact, "a", 8), variant(artifact, "b", 8)]
    async with serving(artifacts, [fake_of(one) for one in artifacts]) as client:
        reply = (await client.get("/models")).json()
    assert reply.keys() == {"data", "object"}
    assert [one["id"] for one in reply["data"]] == ["a", "b"]
    for one in reply["data"]:
        assert one.keys() == {
            "id",
            "stats",
            "object",
            "owned_by",
            "created",
            "backend",
            "capabilities",
        }
        assert (one["object"], one["owned_by"], one["backend"]) == ("model", "infinity", "fake")
        assert one["stats"] == {"queue_fraction": 0, "queue_absolute": 0}
        assert 0 < time.time() - one["created"] < 10 * 365 * 24 * 3600
        assert one["capabilities"] == ["embed"]


@pytest.mark.parametrize(
    ("task", "able"),
    [
        (None, ["embed"]),
        (RANKS, ["rerank", "classify"]),
        (LABELS, ["classify"]),
        (TOKENS, []),
        (SPARSE, []),
        (TaskConfig(kind="late_interaction", outputs=6, pooling="none"), ["rerank"]),
    ],
)
def test_capabilities_are_the_routes_that_answer(task: TaskConfig | None, able: list[str]) -> None:
    assert capabilities(task) == able


def test_infinitys_name_of_no_model_is_none() -> None:
    """Infinity's clients always send a model name."""
    assert InfinityRequest(model="default/not-specified").model is None
    assert InfinityRequest(model="a").model == "a"
    assert InfinityRequest().model is None


def test_replies_have_ids_of_their_own() -> None:
    first, second = (envelope("list", "m", Timings(3, 0.0, 0.0)) for _ in range(2))
    assert first["id"].startswith("infinity-")
    assert first["id"] != second["id"]
    assert abs(first["created"] - time.time()) < 60
    assert first["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


def test_the_limit_of_a_text_counts_the_spaces_around_it() -> None:
    """As in the document, which cannot tell that spaces are stripped."""
    text: TypeAdapter[str] = TypeAdapter(Text)
    for given in (f" a{' ' * (MAX_CHARACTERS - 2)}", "a" * MAX_CHARACTERS):
        assert text.validate_python(given) == given.strip()
        assert jsonschema_rs.is_valid(text.json_schema(), given)
        with pytest.raises(ValidationError, match=f"at most {MAX_CHARACTERS} characters"):
            text.validate_python(f"{given} ")
        assert not jsonschema_rs.is_valid(text.json_schema(), f"{given} ")
