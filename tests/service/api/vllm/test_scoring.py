"""Scores of pairs by every kind of model, against sentence-transformers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer

from model.artifact.manifest import Artifact
from tests.model.late_checkpoints import DOCUMENTS
from tests.service.api.rankers import QUERY, TEXTS, Ranker
from tests.service.harness import Client, serving

pytestmark = pytest.mark.anyio
FITTING = [text for text in TEXTS if len(text) < 60]
QUERIES = [QUERY, "x", "the the cat", "a", "b c"]


async def scores(client: Client, first: Any, second: Any, **fields: Any) -> list[float]:
    """Return the scores of a reply, whose pairs are in the order of the request."""
    answer = await client.post("/score", json={"text_1": first, "text_2": second, **fields})
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return [one["score"] for one in data]


async def test_a_cross_encoder(ranking: Client, ranker: Ranker) -> None:
    """A text is paired with many, or each with its own; without activation scores are logits."""
    one = await scores(ranking, QUERY, FITTING)
    assert one == pytest.approx(ranker.scores(QUERY, FITTING).tolist(), abs=1e-4)
    each = list(zip(QUERIES, FITTING, strict=True))
    found = await scores(ranking, QUERIES, FITTING, use_activation=False)
    assert found == pytest.approx(ranker.logits(each).tolist(), abs=1e-4)
    assert await scores(ranking, [QUERY], FITTING[0]) == pytest.approx(one[:1], abs=1e-6)


@pytest.mark.parametrize("side", ["right", "left"])
async def test_pairs_are_cut_to_the_length_asked_for(
    ranking: Client, cross_checkpoint: Path, side: str
) -> None:
    """As transformers does: the longer of both gives way first."""
    for asked, most in ((9, 9), (-1, 36)):
        model = CrossEncoder(
            str(cross_checkpoint),
            device="cpu",
            max_length=most,
            tokenizer_kwargs={"truncation_side": side},
        )
        fields = {"truncate_prompt_tokens": asked, "truncation_side": side}
        found = await scores(ranking, QUERY, TEXTS, **fields)
        expected = Ranker(model).scores(QUERY, TEXTS)
        assert found == pytest.approx(expected.tolist(), abs=1e-4)


async def test_a_model_of_vectors(client: Client, small_checkpoint: Path) -> None:
    """The cosine, as vLLM's own: also where texts are cut."""
    first, second = ["What is it?", "word " * 20], ["It is a cat.", "something else entirely"]
    for asked in (None, 7):
        model = SentenceTransformer(str(small_checkpoint), device="cpu")
        model.max_seq_length = asked or 512
        one, other = model.encode(first), model.encode(second)
        expected = model.similarity(one, other).numpy()
        found = await scores(client, first, second, truncate_prompt_tokens=asked)
        np.testing.assert_allclose(found, np.diag(expected), atol=2e-5)
        found = await scores(client, first[1], second, truncate_prompt_tokens=asked)
        np.testing.assert_allclose(found, expected[1], atol=2e-5)


@pytest.fixture(scope="module")
async def late(late_artifact: Artifact, anyio_backend: str) -> AsyncIterator[Client]:
    """Return a late-interaction model."""
    async with serving(late_artifact) as client:
        yield client


async def test_a_late_interaction_model(late: Client, late_checkpoint: Path) -> None:
    """MaxSim, also of queries that come twice and out of turn."""
    reference = MultiVectorEncoder(str(late_checkpoint), device="cpu")
    queries = ["the cat", "a b", "the cat", "x", "a b"]
    vectors = reference.encode_query(queries), reference.encode_document(DOCUMENTS)
    expected = reference.similarity(*vectors).numpy()
    found = await scores(late, queries, DOCUMENTS)
    assert found == pytest.approx(np.diag(expected).tolist(), abs=1e-4)
    assert await scores(late, "a b", DOCUMENTS) == pytest.approx(expected[1].tolist(), abs=1e-4)
