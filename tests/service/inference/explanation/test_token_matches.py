"""Tokens that a late-interaction model matches, by sentence-transformers' vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import MultiVectorEncoder

from model.artifact.manifest import Artifact
from service.api.wire.media import SAFETENSORS
from service.inference.explanation.token_matches import PairMatches, TokenMatch, max_sim_matches
from tests.model.late_checkpoints import DOCUMENTS, QUERY
from tests.service.harness import assert_problem, serving

pytestmark = pytest.mark.anyio


def test_matches_by_hand() -> None:
    query = np.array([[1, 0], [9, 9], [0, 2]], np.float32)
    document = np.array([[0, 1], [5, 5], [3, 1]], np.float32)
    kept = np.array([0, 2]), np.array([0, 2])
    assert max_sim_matches(query, document, kept) == [TokenMatch(0, 2, 3.0), TokenMatch(2, 0, 2.0)]
    assert max_sim_matches(query, document, (kept[0], kept[1][:0])) == []


def test_a_mean_is_complete_too() -> None:
    matches = [TokenMatch(0, 0, 1.0), TokenMatch(1, 0, 0.5)]
    fields = PairMatches(0.75, matches, mean=True).fields()
    assert fields["completeness_error"] == 0
    assert PairMatches(1.0, matches).fields()["completeness_error"] == 0.5


async def test_matches_sum_to_max_sim(late_artifact: Artifact, late_checkpoint: Path) -> None:
    reference = MultiVectorEncoder(str(late_checkpoint), device="cpu")
    inputs = [[QUERY, document] for document in DOCUMENTS]
    async with serving(late_artifact) as client:
        response = await client.post("/explain", json={"inputs": inputs})
        binary = {"accept": SAFETENSORS}
        refused: list[tuple[dict[str, Any], dict[str, str], str]] = [
            ({"include": ["pairs"]}, {}, "only matches"),
            ({"layer": 0}, {}, "only matches"),
            ({"prompt_name": "query"}, {}, "prompt_name is not for this model"),
            ({}, binary, "matches are JSON"),
        ]
        for changes, headers, says in refused:
            body = {"inputs": inputs} | changes
            assert_problem(await client.post("/explain", json=body, headers=headers), 422, says)
    (query,) = reference.encode_query([QUERY])
    for found, document in zip(response.json()["results"], DOCUMENTS, strict=True):
        (theirs,) = reference.encode_document([document])
        products = np.asarray(query) @ np.asarray(theirs).T
        assert found["similarity"] == pytest.approx(products.max(axis=1).sum(), abs=1e-4)
        assert found["completeness_error"] < 1e-5
        scores = [match["score"] for match in found["matches"]]
        np.testing.assert_allclose(scores, products.max(axis=1), atol=1e-5)
        sizes = [len(text["tokens"]) for text in found["texts"]]
        assert [match["query"] for match in found["matches"]] == list(range(sizes[0]))
        assert max(match["document"] for match in found["matches"]) < sizes[1]
