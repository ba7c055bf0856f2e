"""Rankings and shares of every kind of model, against transformers and sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.util import cos_sim, dot_score, euclidean_sim, manhattan_sim
from torch.nn import functional
from transformers import AutoTokenizer, Qwen3ForCausalLM

from model.artifact.manifest import Artifact
from model.artifact.sentence import SentenceConfig
from model.export.serving import serving_copy
from service.inference.ranking.scorers import sides_of_pair, similarity
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
from tests.model.hybrid_checkpoints import FlagEmbedding, write_hybrid
from tests.model.logit_checkpoints import published, write_cross_encoder
from tests.model.task_checkpoints import write_sparse_checkpoint, write_task_checkpoint
from tests.service.harness import Client, assert_problem, serving
from tests.service.inference.ranking.oracle import DOCUMENTS, CrossEncoder, Embedder, ranked

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


SPARSE_QUERY = "the cat a b"


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
        reply = await ranked(client, SPARSE_QUERY, explain="tokens")
        contrast = (await ranked(client, SPARSE_QUERY, explain="contrast", compare=[0, 1]))[
            "contrast"
        ]
        without = (await ranked(client, SPARSE_QUERY, query_without=[[4, 7]]))["results"]
    async with serving(serving_copy(artifact, tmp_path / "serving")) as client:
        plain = await ranked(client, SPARSE_QUERY)
        body = {"query": SPARSE_QUERY, "documents": DOCUMENTS, "explain": "tokens"}
        assert_problem(await client.post("/rank", json=body), 501, "--serving-only", "Backend")
    query = weights(SPARSE_QUERY)
    scores = [float(query @ weights(document)) for document in DOCUMENTS]
    assert (reply["scoring"], reply["method"]) == ("sparse", "weights")
    for result in without:
        expected = float(weights(SPARSE_QUERY, 2) @ weights(DOCUMENTS[result["index"]]))
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


HYBRID_QUERY = "a river under a hill"
HYBRID_DOCUMENTS = ["the river runs under the hill", "nobody looks at the water"]
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
    fields: dict[str, Any] = {
        "documents": HYBRID_DOCUMENTS,
        "weights": WEIGHTS,
        "explain": "tokens",
    }
    async with serving(exported(folder, "hybrid")) as client:
        reply = await ranked(client, HYBRID_QUERY, **fields)
        contrast = (await ranked(client, HYBRID_QUERY, **fields | {"explain": "contrast"}))[
            "contrast"
        ]
    assert (reply["scoring"], reply["method"]) == ("hybrid", "occlusion")
    scores = [
        float(np.dot([0.4, 0.2, 0.4], reference.scores(HYBRID_QUERY, text)))
        for text in HYBRID_DOCUMENTS
    ]
    for result in reply["results"]:
        text, score = HYBRID_DOCUMENTS[result["index"]], scores[result["index"]]
        assert result["score"] == pytest.approx(score, abs=1e-5)
        assert [*result["parts"]] == [*WEIGHTS]
        expected = reference.scores(HYBRID_QUERY, text)
        np.testing.assert_allclose([*result["parts"].values()], expected, atol=1e-5)
        tokens = range(1, len(result["tokens"]) - 1)
        losses = [score - reference.without(HYBRID_QUERY, text, token) for token in tokens]
        np.testing.assert_allclose(result["shares"][1:-1], losses, atol=1e-5)
    assert contrast["difference"] == pytest.approx(max(scores) - min(scores), abs=1e-5)
    async with serving(artifact) as client:
        answer = await client.post("/rank", json={"query": "a", **fields})
        assert_problem(answer, 422, "weights: ")


CROSS_QUERY = "a cat b"


@pytest.mark.parametrize("family", ["Bert", "ModernBert"])
async def test_the_loss_of_a_cross_encoder_without_each_token(
    exported: Callable[..., Artifact], cross_checkpoint: Path, tmp_path: Path, family: str
) -> None:
    """A head over the first token, and one over the mean, which leaves the token out as well."""
    folder, name = cross_checkpoint, "cross"
    if family != "Bert":
        folder, name = tmp_path / "model", f"rank-{family}"
        write_task_checkpoint(folder, family=family, num_labels=1)
    oracle = CrossEncoder(folder)
    async with serving(exported(folder, name)) as client:
        reply = await ranked(client, CROSS_QUERY, explain="tokens", top_n=3)
    assert (reply["scoring"], reply["method"]) == ("logit", "occlusion")
    scores = [oracle.score(CROSS_QUERY, document) for document in DOCUMENTS]
    expected = np.argsort([-score for score in scores], kind="stable")[:3]
    assert [result["index"] for result in reply["results"]] == expected.tolist()
    for result in reply["results"]:
        document, score = DOCUMENTS[result["index"]], scores[result["index"]]
        own = oracle.own(CROSS_QUERY, document)
        assert result["score"] == pytest.approx(score, abs=1e-5)
        losses = [score - oracle.score(CROSS_QUERY, document, token) for token in own]
        np.testing.assert_allclose(result["shares"], losses, atol=2e-5)
        assert result["completeness_error"] == pytest.approx(abs(sum(losses) - score), abs=1e-4)
        assert [document[start:end].lower() for start, end in result["offsets"]] == result["tokens"]
        assert (result["partial"], result["computed"]) == (False, len(own))


async def test_a_contrast_removes_words_as_transformers_masks_them(
    cross_checkpoint: Path, exported: Callable[..., Artifact]
) -> None:
    oracle = CrossEncoder(cross_checkpoint)
    async with serving(exported(cross_checkpoint, "cross")) as client:
        reply = await ranked(client, CROSS_QUERY, explain="contrast", compare=[1, 3], top_words=2)
    scores = [oracle.score(CROSS_QUERY, document) for document in DOCUMENTS]
    contrast = reply["contrast"]
    assert contrast["documents"] == [1, 3]
    assert contrast["difference"] == pytest.approx(scores[1] - scores[3], abs=1e-5)
    for side, number in enumerate((1, 3)):
        document = DOCUMENTS[number]
        words = document.lower().split()
        own = oracle.own(CROSS_QUERY, document)
        without = {
            word: oracle.score(
                *(CROSS_QUERY, document),
                *(token for token, name in zip(own, words, strict=True) if name == word),
            )
            for word in words
        }
        shares = {
            row["word"]: row["shares"][side] for row in contrast["words"] if row["spans"][side]
        }
        assert shares == {
            word: pytest.approx(scores[number] - left, abs=2e-5) for word, left in without.items()
        }
        strongest = sorted(without, key=lambda word: without[word])[:2]
        assert [row["word"] for row in contrast["without"][side]] == strongest
        for row in contrast["without"][side]:
            score = without[row["word"]]
            others = [other for place, other in enumerate(scores) if place != number]
            assert row["score"] == pytest.approx(score, abs=2e-5)
            assert row["rank"] == 1 + sum(other > score for other in others)


async def test_words_of_the_query_are_left_out_of_each_pair(
    cross_checkpoint: Path, exported: Callable[..., Artifact]
) -> None:
    oracle = CrossEncoder(cross_checkpoint)
    fields = {"query_without": [[2, 5]], "documents_without": [[[4, 7]], *[[]] * 4]}
    async with serving(exported(cross_checkpoint, "cross")) as client:
        reply = await ranked(client, CROSS_QUERY, **fields)
        whole = await ranked(client, CROSS_QUERY, explain="tokens")
    scores = {result["index"]: result["score"] for result in reply["results"]}
    for number, document in enumerate(DOCUMENTS):
        word = [oracle.own(CROSS_QUERY, document)[1]] if number == 0 else []
        expected = oracle.score(CROSS_QUERY, document, 2, *word)  # [CLS] a cat b
        assert scores[number] == pytest.approx(expected, abs=2e-5)
    assert whole["query"]["tokens"] == ["a", "cat", "b"]


@pytest.mark.parametrize("family", ["Bert", "XLMRoberta"])
def test_the_texts_of_a_pair(tmp_path: Path, family: str) -> None:
    """By the positions that transformers' tokenizer gives, also where a text has no token."""
    folder = write_task_checkpoint(tmp_path / "model", family=family, num_labels=1)
    oracle = CrossEncoder(folder)
    sentence = SentenceConfig(pooling="mean", max_length=36)
    tokenizer = TextTokenizer(folder / "tokenizer.json", sentence, Limits(36, 999))
    for pair in [("a b", "the cat"), ("", "x y"), ("x y", ""), ("", "")]:
        (text,) = tokenizer.tokenize([pair], Options())
        first, second = sides_of_pair(text)
        assert list(second) == oracle.own(*pair), pair
        assert list(first) == oracle.own(*pair, side=0), pair


@pytest.mark.slow
async def test_a_reranker_by_logits(exported: Callable[..., Artifact], tmp_path: Path) -> None:
    """Tokens of its chat template stay."""
    folder = write_cross_encoder(tmp_path / "saved", num_hidden_layers=1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = Qwen3ForCausalLM.from_pretrained(folder).eval()
    words = tokenizer.convert_tokens_to_ids(["yes", "no"])
    document = "The cat sat on the mat."
    text = published(CROSS_QUERY, document)
    encoded = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    begin = text.rindex(document)
    spans = encoded.pop("offset_mapping")[0].tolist()
    own = [n for n, (a, b) in enumerate(spans) if b > begin and a < begin + len(document)]

    def score(*masked: int) -> float:
        mask = torch.ones_like(encoded["attention_mask"])
        mask[0, list(masked)] = 0
        with torch.inference_mode():
            yes, no = model(encoded["input_ids"], attention_mask=mask).logits[0, -1, words]
        return float(yes - no)

    async with serving(exported(folder, "logit-st")) as client:
        reply = await ranked(client, CROSS_QUERY, documents=[document], explain="tokens")
        named = {"query": CROSS_QUERY, "documents": [document], "document_prompt_name": "news"}
        refused = await client.post("/rank", json=named)
    assert refused.status_code == 422
    assert "document_prompt_name is not for this model" in refused.json()["detail"]
    (result,) = reply["results"]
    assert result["score"] == pytest.approx(score(), abs=1e-4)
    losses = [score() - score(token) for token in own]
    np.testing.assert_allclose(result["shares"], losses, atol=1e-4)
