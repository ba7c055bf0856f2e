"""`POST /pooling` in vLLM's form."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from transformers import AutoTokenizer

from model.artifact.manifest import Artifact
from tests.model.late_checkpoints import DOCUMENTS
from tests.service.api.tei.tasks import LABELS, RANKS, SPARSE, TOKENS, scores_of, serving_task
from tests.service.harness import Client, serving

pytestmark = pytest.mark.anyio
TEXTS = ["What is Deep Learning?", "naïve café", "a"]


async def pooled(client: Client, given: Any, **fields: Any) -> list[np.ndarray]:
    """Check the form of a reply, and return the data of each text."""
    answer = await client.post("/pooling", json={"input": given, **fields})
    assert answer.status_code == 200, answer.text
    reply = answer.json()
    assert reply.keys() - {"warnings"} == {"id", "object", "created", "model", "data", "usage"}
    assert reply["id"] == f"pooling-{answer.headers['x-request-id']}"
    assert reply["usage"]["prompt_tokens"] == int(answer.headers["x-compute-tokens"])
    assert [one["index"] for one in reply["data"]] == list(range(len(reply["data"])))
    assert all(one.keys() == {"index", "object", "data"} for one in reply["data"])
    assert {one["object"] for one in reply["data"]} == {"pooling"}
    return [
        np.frombuffer(base64.b64decode(one["data"]), "<f4")
        if isinstance(one["data"], str)
        else np.array(one["data"], np.float32)
        for one in reply["data"]
    ]


async def test_vectors_of_texts_and_tokens(client: Client, small_checkpoint: Path) -> None:
    """A vector of each text unless tokens are asked for; unit vectors only where asked or named."""
    model = SentenceTransformer(str(small_checkpoint), device="cpu")
    vectors = model.encode(TEXTS)
    tokens = [one.numpy() for one in model.encode(TEXTS, output_value="token_embeddings")]
    found = await pooled(client, TEXTS)
    np.testing.assert_allclose(found, vectors, atol=2e-5)
    unit = await pooled(client, TEXTS, task="embed", use_activation=True)
    np.testing.assert_allclose(unit, model.encode(TEXTS, normalize_embeddings=True), atol=2e-5)
    flat = await pooled(client, TEXTS, task="token_embed", encoding_format="base64")
    units = await pooled(client, TEXTS, task="token_embed", use_activation=True)
    for matrix, one, other in zip(tokens, flat, units, strict=True):
        np.testing.assert_allclose(one.reshape(matrix.shape), matrix, atol=5e-5)
        lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
        np.testing.assert_allclose(other, matrix / lengths, atol=2e-5)


async def test_token_ids_and_cut_texts(client: Client, small_checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(small_checkpoint)
    ids = tokenizer(TEXTS)["input_ids"]
    found = await pooled(client, TEXTS)
    np.testing.assert_allclose(await pooled(client, ids), found, atol=1e-5)
    np.testing.assert_allclose(await pooled(client, ids[0]), found[:1], atol=1e-5)
    cut = tokenizer.decode(ids[0][1:4])
    same = await pooled(client, TEXTS[0], truncate_prompt_tokens=5)
    np.testing.assert_allclose(same, await pooled(client, cut), atol=1e-5)


@pytest.mark.parametrize("task", [LABELS, RANKS, TOKENS])
async def test_labels_of_texts_and_tokens(artifact: Artifact, task: Any) -> None:
    """Softmax of several, sigmoid of one, logits without activation."""
    logits = [torch.from_numpy(one) for one in scores_of(artifact, task, TEXTS)]
    activation = torch.sigmoid if task.outputs == 1 else lambda x: torch.softmax(x, dim=-1)
    async with serving_task(artifact, task) as client:
        found = await pooled(client, TEXTS)
        raw = await pooled(client, TEXTS, use_activation=False)
    for one, other, expected in zip(found, raw, logits, strict=True):
        np.testing.assert_allclose(one, activation(expected).numpy(), atol=1e-6)
        np.testing.assert_allclose(other, expected.numpy(), atol=1e-6)


async def test_vectors_of_a_late_interaction_model(
    late_artifact: Artifact, late_checkpoint: Path
) -> None:
    """The reply has unit vectors of all tokens; a document's vectors in MaxSim are among them."""
    reference = MultiVectorEncoder(str(late_checkpoint), device="cpu")
    expected = reference.encode_document(DOCUMENTS[:1])[0]
    prompt = reference.prompts["document"]
    async with serving(late_artifact) as client:
        (found,) = await pooled(client, prompt + DOCUMENTS[0])
        refused = await client.post("/pooling", json={"input": "a", "use_activation": False})
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    nearest = (np.asarray(expected) @ found.T).max(axis=1)
    np.testing.assert_allclose(nearest, 1, atol=1e-4)
    assert refused.status_code == 400


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"dimensions": 5}, "dimensions"),
        ({"encoding_format": "bytes"}, "encoding_format"),
        ({"embed_dtype": "float16"}, "embed_dtype"),
        ({"endianness": "big"}, "endianness"),
        ({"add_special_tokens": False}, "add_special_tokens"),
        ({"task": "classify"}, "small has no task classify; it has embed, token_embed"),
        ({"task": "plugin"}, "task"),
        ({"input": []}, "input: empty"),
        ({"input": [[10**9]]}, "token id 1000000000"),
        ({"input": "word " * 600}, "602 tokens; at most 512 fit"),
        ({"truncate_prompt_tokens": 0}, "is not in 1 … 512"),
    ],
)
async def test_refusals(client: Client, fields: dict[str, Any], says: str) -> None:
    refused = await client.post("/pooling", json={"input": "a"} | fields)
    assert refused.status_code == 400
    assert says in refused.json()["error"]["message"]


async def test_a_sparse_encoder_pools_nothing(artifact: Artifact) -> None:
    async with serving_task(artifact, SPARSE) as client:
        refused = await client.post("/pooling", json={"input": "a"})
        assert (refused.status_code, "/embed_sparse" in refused.text) == (400, True)


async def test_a_reply_is_bounded_before_anything_is_computed(artifact: Artifact) -> None:
    """A text has three numbers of 15 bytes each."""
    size = 2 * (3 * 15 + 64)
    for limit, status in ((size, 200), (size - 1, 413)):
        async with serving_task(artifact, LABELS, max_response_bytes=limit) as client:
            assert (await client.post("/pooling", json={"input": ["a", "b"]})).status_code == status
