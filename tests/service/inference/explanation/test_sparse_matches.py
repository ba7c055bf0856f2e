"""Source tokens of the weights of two SPLADE vectors, by sentence-transformers' logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SparseEncoder

from model.artifact.manifest import Artifact
from model.export.serving import serving_copy
from tests.model.task_checkpoints import write_sparse_checkpoint
from tests.service.harness import assert_problem, serving

pytestmark = pytest.mark.anyio
PAIR = ["the cat a b", "a cat . x y"]


async def test_the_tokens_that_made_shared_words(
    exported: Callable[..., Artifact], tmp_path: Path
) -> None:
    folder = write_sparse_checkpoint(tmp_path / "a")
    encoder = SparseEncoder(str(folder), device="cpu")
    vectors = encoder.encode(PAIR, convert_to_sparse_tensor=False, convert_to_tensor=True)
    one, other = vectors.numpy()
    with torch.inference_mode():
        inputs = [encoder.preprocess([text]) for text in PAIR]
        logits = [encoder[0](one)["token_embeddings"][0].numpy() for one in inputs]
    artifact = exported(folder, "splade-max")
    async with serving(artifact) as client:
        response = await client.post("/explain", json={"inputs": [PAIR] * 2})
    async with serving(serving_copy(artifact, tmp_path / "serving")) as client:
        gone = await client.post("/explain", json={"inputs": [PAIR]})
    assert_problem(gone, 501, "this artifact was exported with --serving-only", "Backend")
    found, again = response.json()["results"]
    assert found == again
    assert found["similarity"] == pytest.approx(float(one @ other), rel=1e-5)
    assert found["completeness_error"] < 1e-5
    matches = found["matches"]
    assert {match["token_id"] for match in matches} == set(np.flatnonzero(one * other).tolist())
    assert matches
    for match in matches:
        word = match["token_id"]
        assert match["score"] == pytest.approx(one[word] * other[word], rel=1e-4, abs=1e-6)
        for side, of_text in zip(("query", "document"), logits, strict=True):
            assert of_text[match[side], word] == pytest.approx(of_text[:, word].max(), abs=1e-5)
    scores = [match["score"] for match in matches]
    assert scores == sorted(scores, reverse=True)
