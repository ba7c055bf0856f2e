"""`POST /embeddings` in Infinity's form."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from model.artifact.manifest import Artifact
from tests.service.api.tei.tasks import LABELS, serving_task
from tests.service.harness import Client, serving
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio
TEXTS = ["What is Deep Learning?", "naïve café 😀", "word " * 600, ""]


@pytest.fixture(scope="module")
def expected(small_checkpoint: Path) -> np.ndarray:
    """Return unit vectors by sentence-transformers, as Infinity does; long texts are truncated."""
    model = SentenceTransformer(str(small_checkpoint), device="cpu")
    vectors: np.ndarray = model.encode(TEXTS, normalize_embeddings=True)
    return vectors


async def vectors(client: Client, **fields: Any) -> np.ndarray:
    """Check the form of a reply, and return its vectors."""
    answer = await client.post("/embeddings", json={"input": TEXTS, **fields})
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
    np.testing.assert_allclose(await vectors(client, input=f" {TEXTS[0]}\n"), found[:1], atol=1e-6)


async def test_prompts_are_not_infinitys(artifact: Artifact) -> None:
    """Texts get no prompt, even if the checkpoint has a default prompt."""
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    sentence = artifact.manifest.sentence.model_copy(update=prompts)
    changed = variant(artifact, "prompted", 8, sentence=sentence)
    async with serving(changed, fake_of(changed)) as client:
        answer = await client.post("/embeddings", json={"input": "a b"})
    assert answer.json()["usage"]["total_tokens"] == 4


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"dimensions": 129}, 400, "dimensions 129 is not in 1 … 128; 0 is all"),
        ({"dimensions": -1}, 400, "not in 1 … 128"),
        ({"modality": "image", "input": "https://a/b.png"}, 400, "does not embed image"),
        ({"input": []}, 422, "input"),
        ({"input": ["a"] * 2049}, 422, "input"),
        ({"input": [[1, 2]]}, 422, "input"),
        ({"encoding_format": "ubinary"}, 422, "encoding_format"),
    ],
)
async def test_refusals(client: Client, fields: dict[str, Any], status: int, says: str) -> None:
    refused = await client.post("/embeddings", json={"input": "a"} | fields)
    assert refused.status_code == status
    assert says in refused.json()["error"]["message"]


async def test_the_name_chooses_a_model(artifact: Artifact) -> None:
    artifacts = [variant(artifact, "a", 8), variant(artifact, "b", 16)]
    async with serving(artifacts, [fake_of(one) for one in artifacts]) as client:
        for name, size in (("b", 16), ("a", 8), ("default/not-specified", 8)):
            answer = await client.post("/embeddings", json={"input": "a", "model": name})
            assert len(answer.json()["data"][0]["embedding"]) == size
            assert answer.headers["x-model"] == answer.json()["model"]
        unknown = await client.post("/embeddings", json={"input": "a", "model": "c"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, 400)


async def test_a_classifier_embeds_nothing(artifact: Artifact) -> None:
    async with serving_task(artifact, LABELS) as client:
        assert (await client.post("/embeddings", json={"input": "a"})).status_code == 400
