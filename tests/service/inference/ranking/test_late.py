"""MaxSim rankings and the share of each document token, by sentence-transformers' vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import MultiVectorEncoder

from model.artifact.manifest import Artifact
from tests.model.late_checkpoints import DOCUMENTS, QUERY
from tests.service.harness import serving
from tests.service.inference.ranking.oracle import ranked

pytestmark = pytest.mark.anyio


async def test_shares_are_the_sums_of_matches(
    late_artifact: Artifact, late_checkpoint: Path
) -> None:
    reference = MultiVectorEncoder(str(late_checkpoint), device="cpu")
    async with serving(late_artifact) as client:
        reply = await ranked(client, QUERY, documents=DOCUMENTS, explain="tokens")
        contrast = await ranked(client, QUERY, documents=DOCUMENTS, explain="contrast")
        body = {"query": QUERY, "documents": DOCUMENTS, "query_prompt_name": "query"}
        refused = await client.post("/rank", json=body)
    assert (refused.status_code, reply["method"], reply["scoring"]) == (422, "matches", "maxsim")
    (query,) = reference.encode_query([QUERY])
    for result in reply["results"]:
        (theirs,) = reference.encode_document([DOCUMENTS[result["index"]]])
        products = np.asarray(query) @ np.asarray(theirs).T
        assert result["score"] == pytest.approx(products.max(axis=1).sum(), abs=1e-4)
        expected = np.zeros(len(theirs))
        np.add.at(expected, products.argmax(axis=1), products.max(axis=1))
        found = [share for share in result["shares"] if share]
        np.testing.assert_allclose(found, expected[expected != 0], atol=1e-4)
        assert result["completeness_error"] < 1e-5
    assert reply["prompts"] == {"query": None, "document": None}
    assert contrast["contrast"]["completeness_error"] < 1e-5
    assert not contrast["contrast"]["partial"]
