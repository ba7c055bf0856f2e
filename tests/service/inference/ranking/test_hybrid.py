"""Hybrid rankings, against FlagEmbedding's formulas over masked tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from model.artifact.manifest import Artifact
from tests.model.hybrid_checkpoints import FlagEmbedding, write_hybrid
from tests.service.harness import assert_problem, serving
from tests.service.inference.ranking.oracle import ranked

pytestmark = pytest.mark.anyio
QUERY = "a river under a hill"
DOCUMENTS = ["the river runs under the hill", "nobody looks at the water"]
WEIGHTS = {"dense": 0.4, "sparse": 0.2, "multivector": 0.4}


class Masked(FlagEmbedding):
    """FlagEmbedding's formulas without one token of a document."""

    def without(self, query: str, text: str, masked: int) -> float:
        first, ids = self.vectors(query), self.tokenizer(text, return_tensors="pt")
        ids["attention_mask"][0, masked] = 0
        with torch.no_grad():
            hidden = self._model(**ids).last_hidden_state[0]
        seen = [n for n in range(len(hidden)) if n != masked]
        dense = float(first.dense @ functional.normalize(hidden[0], dim=-1))
        vectors = self._map("colbert", hidden[[n for n in seen if n]])
        products = first.colbert @ functional.normalize(vectors, dim=-1).T
        weights = torch.relu(self._map("sparse", hidden))[:, 0].tolist()
        words: dict[int, float] = {}
        for n in seen:
            token = int(ids["input_ids"][0, n])
            words[token] = max(weights[n], words.get(token, 0.0))
        sparse = sum(weight * words.get(word, 0.0) for word, weight in first.sparse.items())
        multivector = float(products.max(dim=1).values.mean())
        return float(np.dot([0.4, 0.2, 0.4], [dense, sparse, multivector]))


async def test_the_loss_without_each_token(
    exported: Callable[..., Artifact], artifact: Artifact, tmp_path: Path
) -> None:
    reference = Masked(folder := write_hybrid(tmp_path / "model"))
    fields: dict[str, Any] = {"documents": DOCUMENTS, "weights": WEIGHTS, "explain": "tokens"}
    async with serving(exported(folder, "hybrid")) as client:
        reply = await ranked(client, QUERY, **fields)
        contrast = (await ranked(client, QUERY, **fields | {"explain": "contrast"}))["contrast"]
    assert (reply["scoring"], reply["method"]) == ("hybrid", "occlusion")
    scores = [float(np.dot([0.4, 0.2, 0.4], reference.scores(QUERY, text))) for text in DOCUMENTS]
    for result in reply["results"]:
        text, score = DOCUMENTS[result["index"]], scores[result["index"]]
        assert result["score"] == pytest.approx(score, abs=1e-5)
        assert [*result["parts"]] == [*WEIGHTS]
        expected = reference.scores(QUERY, text)
        np.testing.assert_allclose([*result["parts"].values()], expected, atol=1e-5)
        tokens = range(1, len(result["tokens"]) - 1)
        losses = [score - reference.without(QUERY, text, token) for token in tokens]
        np.testing.assert_allclose(result["shares"][1:-1], losses, atol=1e-5)
    assert contrast["difference"] == pytest.approx(max(scores) - min(scores), abs=1e-5)
    async with serving(artifact) as client:
        answer = await client.post("/rank", json={"query": "a", **fields})
        assert_problem(answer, 422, "weights: ")
