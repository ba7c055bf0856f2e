"""Rankings by vectors of texts, and shares of tokens, against transformers' states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers.util import cos_sim, dot_score, euclidean_sim, manhattan_sim

from model.artifact.manifest import Artifact
from service.inference.ranking.dense import similarity
from tests.service.harness import Client, serving
from tests.service.inference.ranking.oracle import DOCUMENTS, Embedder, ranked

pytestmark = pytest.mark.anyio
QUERY = "what does the cat do"


@pytest.fixture(scope="module")
def oracle(small_checkpoint: Path) -> Embedder:
    return Embedder(small_checkpoint)


def test_similarities_are_those_of_sentence_transformers() -> None:
    rng = np.random.default_rng(0)
    one, other = (rng.standard_normal(5, np.float32) for _ in range(2))
    for name, theirs in [
        ("cosine", cos_sim),
        ("dot", dot_score),
        ("euclidean", euclidean_sim),
        ("manhattan", manhattan_sim),
    ]:
        expected = float(theirs(one[None], other[None])[0, 0])
        assert similarity(name, one, other) == pytest.approx(expected, abs=1e-6)  # type: ignore[arg-type]


async def test_shares_are_row_sums_of_pairs(client: Client, oracle: Embedder) -> None:
    reply = await ranked(client, QUERY, explain="tokens")
    assert (reply["scoring"], reply["method"]) == ("cosine", "pairs")
    query = oracle.rows(QUERY)
    assert sorted(result["index"] for result in reply["results"]) == list(range(len(DOCUMENTS)))
    scores = [result["score"] for result in reply["results"]]
    assert scores == sorted(scores, reverse=True)
    for result in reply["results"]:
        rows = oracle.rows(DOCUMENTS[result["index"]])
        norms = np.linalg.norm(query.mean(axis=0)) * np.linalg.norm(rows.mean(axis=0))
        pairs = query @ rows.T / (len(query) * len(rows) * norms)
        assert result["score"] == pytest.approx(pairs.sum(), abs=1e-5)
        np.testing.assert_allclose(result["shares"], pairs.sum(axis=0), atol=1e-5)
        assert result["completeness_error"] < 1e-6
        assert len(result["tokens"]) == len(rows)


async def test_a_contrast_sums_to_the_difference(client: Client, oracle: Embedder) -> None:
    """Ranks without a word come from new forward passes, with the word masked."""
    documents = ["the cat sleeps", "dogs bark at the cat, and the dogs run", "a red car"]
    reply = await ranked(client, QUERY, documents=documents, explain="contrast", top_words=3)
    contrast, scores = reply["contrast"], [oracle.score(QUERY, text) for text in documents]
    order = np.argsort([-score for score in scores])[:2]
    assert contrast["documents"] == order.tolist()
    assert contrast["ranks"] == [1, 2]
    total = sum(row["difference"] for row in contrast["words"])
    total += contrast["other"][0] - contrast["other"][1]
    assert total == pytest.approx(scores[order[0]] - scores[order[1]], abs=1e-5)
    assert contrast["completeness_error"] < 1e-6
    sizes = [abs(row["difference"]) for row in contrast["words"]]
    assert sizes == sorted(sizes, reverse=True)
    words = oracle.tokenizer.tokenize
    for side, number in enumerate(contrast["documents"]):
        assert len(contrast["without"][side]) == 3
        tokens = ["[CLS]", *words(documents[number])]
        for row in contrast["without"][side]:
            (piece,) = words(row["word"])
            masked = [place for place, token in enumerate(tokens) if token == piece]
            score = oracle.score(QUERY, documents[number], *masked)
            assert row["score"] == pytest.approx(score, abs=1e-5)
            others = [other for place, other in enumerate(scores) if place != number]
            assert row["rank"] == 1 + sum(other > score for other in others)


async def test_other_poolings_are_occluded(artifact: Artifact, oracle: Embedder) -> None:
    """The vector of the first token is no sum over tokens."""
    sentence = artifact.manifest.sentence.model_copy(update={"pooling": "cls"})
    manifest = artifact.manifest.model_copy(update={"sentence": sentence})
    async with serving(Artifact(artifact.folder, manifest, artifact.sha256)) as client:
        reply = await ranked(client, QUERY, explain="tokens", top_n=1)
    (result,) = reply["results"]
    assert reply["method"] == "occlusion"
    document = DOCUMENTS[result["index"]]

    def score(*masked: int) -> float:
        one, other = oracle.rows(QUERY)[0], oracle.rows(document, *masked)[0]
        return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))

    losses = [score() - score(token) for token in range(1, len(result["tokens"]) - 1)]
    assert (result["shares"][0], result["shares"][-1]) == (None, None)
    np.testing.assert_allclose(result["shares"][1:-1], losses, atol=1e-5)
