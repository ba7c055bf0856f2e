"""Rankings by sparse vectors, by sentence-transformers' vectors and masked logits."""

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
from tests.service.inference.ranking.oracle import DOCUMENTS, ranked

pytestmark = pytest.mark.anyio
QUERY = "the cat a b"


async def test_shares_and_ranks_without_words(
    exported: Callable[..., Artifact], tmp_path: Path
) -> None:
    folder = write_sparse_checkpoint(tmp_path / "a")
    encoder = SparseEncoder(str(folder), device="cpu")

    def weights(text: str, *masked: int) -> np.ndarray:
        features = encoder.preprocess([text])
        features["attention_mask"][0, list(masked)] = 0
        with torch.inference_mode():
            return encoder(features)["sentence_embedding"][0].to_dense().numpy()

    artifact = exported(folder, "splade-max")
    async with serving(artifact) as client:
        reply = await ranked(client, QUERY, explain="tokens")
        contrast = (await ranked(client, QUERY, explain="contrast", compare=[0, 1]))["contrast"]
        without = (await ranked(client, QUERY, query_without=[[4, 7]]))["results"]
    async with serving(serving_copy(artifact, tmp_path / "serving")) as client:
        plain = await ranked(client, QUERY)
        body = {"query": QUERY, "documents": DOCUMENTS, "explain": "tokens"}
        assert_problem(await client.post("/rank", json=body), 501, "--serving-only", "Backend")
    query = weights(QUERY)
    scores = [float(query @ weights(document)) for document in DOCUMENTS]
    assert (reply["scoring"], reply["method"]) == ("sparse", "weights")
    for result in without:
        expected = float(weights(QUERY, 2) @ weights(DOCUMENTS[result["index"]]))
        assert result["score"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert [row["index"] for row in plain["results"]] == [row["index"] for row in reply["results"]]
    for result in reply["results"]:
        document = DOCUMENTS[result["index"]]
        with torch.inference_mode():
            logits = encoder[0](encoder.preprocess([document]))["token_embeddings"][0].numpy()
        products = query * weights(document)
        expected = np.zeros(len(logits))
        np.add.at(expected, logits.argmax(axis=0), products)
        assert result["score"] == pytest.approx(scores[result["index"]], rel=1e-4, abs=1e-6)
        np.testing.assert_allclose(result["shares"], expected, rtol=1e-3, atol=1e-5)
        assert result["completeness_error"] < 1e-5 * max(1, result["score"])
    for side, number in enumerate((0, 1)):
        document = DOCUMENTS[number]
        words = document.split()
        for row in contrast["without"][side]:
            masked = [1 + place for place, word in enumerate(words) if word == row["word"]]
            score = float(query @ weights(document, *masked))
            assert row["score"] == pytest.approx(score, rel=1e-4, abs=1e-5)
            others = [other for place, other in enumerate(scores) if place != number]
            assert row["rank"] == 1 + sum(other > score for other in others)
