"""Rankings without words of the query or of documents, against transformers' `attention_mask` 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.service.harness import Client
from tests.service.inference.ranking.oracle import DOCUMENTS, Embedder, ranked

pytestmark = pytest.mark.anyio
QUERY = "what does the cat do"


@pytest.fixture(scope="module")
def oracle(small_checkpoint: Path) -> Embedder:
    return Embedder(small_checkpoint)


async def test_words_are_left_out_as_transformers_masks_them(
    client: Client, oracle: Embedder
) -> None:
    spans = [[[4, 7]], [], [[0, 1]], [], [[0, 1], [2, 3], [4, 5]]]
    masked = [[2], [], [1], [], [1, 2, 3]]
    fields: dict[str, Any] = {"query_without": [[5, 13]], "documents_without": spans}
    reply = await ranked(client, QUERY, **fields)
    scores = {result["index"]: result["score"] for result in reply["results"]}
    tokens = oracle.tokenizer.tokenize(QUERY)
    of_query = [1 + n for n, token in enumerate(tokens) if token in ("does", "the")]
    assert len(of_query) == 2
    expected = [
        oracle.score(QUERY, text, *hidden, of_query=of_query)
        for text, hidden in zip(DOCUMENTS, masked, strict=True)
    ]
    np.testing.assert_allclose([scores[n] for n in range(len(expected))], expected, atol=1e-5)
    assert [result["index"] for result in reply["results"]] == np.argsort(
        -np.array(expected)
    ).tolist()
