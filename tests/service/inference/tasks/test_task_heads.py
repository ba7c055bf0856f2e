"""Hybrid scores, probabilities, and labels of a request, against other libraries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from transformers import SiglipConfig, SiglipModel

from model.artifact.manifest import Artifact, DualConfig
from service.errors import Unprocessable
from service.inference.tasks.task_heads import label_logits, label_texts, probabilities
from tests.model.hybrid_checkpoints import SIZE, FlagEmbedding, write_hybrid
from tests.model.tower_checkpoints import TEXT, VISION
from tests.service.api.kserve.wire import in_json, tensors
from tests.service.harness import Client, serving

pytestmark = pytest.mark.anyio


TEXTS = ["the river runs under the hill", "nobody looks at the water", "<unk> the </s> river 你"]
QUERY = "a river under a hill"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hybrid(tmp_path_factory.mktemp("hybrid") / "model")


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> FlagEmbedding:
    return FlagEmbedding(checkpoint)


@pytest.fixture(scope="module")
def artifact(exported: Callable[..., Artifact], checkpoint: Path) -> Artifact:
    return exported(checkpoint, "hybrid")


@pytest.fixture(scope="module")
async def client(artifact: Artifact, anyio_backend: str) -> AsyncIterator[Client]:
    async with serving(artifact) as client:
        yield client


async def posted(client: Client, path: str, **body: Any) -> Any:
    reply = await client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_all_vectors_of_one_pass_are_flag_embeddings(
    client: Client, artifact: Artifact, reference: FlagEmbedding
) -> None:
    assert artifact.manifest.verification.passed
    outputs = ["pooled", "sparse", "multivector"]
    assert (await client.get("/info")).json()["outputs"] == ["tokens", *outputs]
    found = await posted(client, "/encode", inputs=TEXTS, outputs=outputs)
    words = await posted(client, "/embed_sparse", inputs=TEXTS)
    tokens = await posted(client, "/pooling", input=TEXTS, task="token_embed")
    for index, (text, own) in enumerate(zip(TEXTS, found["results"], strict=True)):
        expected = reference.vectors(text)
        np.testing.assert_allclose(own["pooled"], expected.dense, atol=1e-5)
        np.testing.assert_allclose(own["multivector"], expected.colbert, atol=1e-5)
        sparse = dict(zip(own["sparse"]["indices"], own["sparse"]["values"], strict=True))
        assert [*sparse] == sorted(expected.sparse)
        assert sparse == pytest.approx(expected.sparse, abs=1e-5)
        assert {word["index"]: word["value"] for word in words[index]} == sparse
        assert tokens["data"][index]["data"] == own["multivector"]
    assert any(reference.vectors(text).sparse for text in TEXTS)


@pytest.mark.parametrize(
    "weights", [None, {"dense": 0.4, "sparse": 0.2, "multivector": 0.4}, {"sparse": 1}], ids=str
)
async def test_hybrid_scores_are_flag_embeddings(
    client: Client, reference: FlagEmbedding, weights: dict[str, float] | None
) -> None:
    names = ("dense", "sparse", "multivector")
    w = [1, 1, 1] if weights is None else [weights.get(name, 0) for name in names]
    expected = [np.dot(w, reference.scores(QUERY, text)) / sum(w) for text in TEXTS]
    body = {} if weights is None else {"weights": weights}
    ranks = await posted(client, "/rerank", query=QUERY, texts=TEXTS, **body)
    assert [rank["index"] for rank in ranks] == np.argsort(-np.array(expected)).tolist()
    found = {rank["index"]: rank["score"] for rank in ranks}
    assert found == pytest.approx(dict(enumerate(expected)), abs=1e-5)
    inputs = {"source_sentence": QUERY, "sentences": TEXTS}
    found = await posted(client, "/similarity", inputs=inputs, parameters=body)
    if weights is None:  # cosines of the dense vectors
        expected = [reference.scores(QUERY, text)[0] for text in TEXTS]
    assert found == pytest.approx(expected, abs=1e-5)


async def test_dialects_answer_with_dense_vectors_and_hybrid_scores(client: Client) -> None:
    (vector, *_) = await posted(client, "/embed", inputs=TEXTS)
    found = await posted(client, "/encode", inputs=TEXTS, outputs=["pooled"])
    np.testing.assert_allclose(vector, found["results"][0]["pooled"], atol=1e-7)
    ranks = await posted(client, "/rerank", query=QUERY, texts=TEXTS)
    other = await posted(client, "/v2/rerank", query=QUERY, documents=TEXTS, model="hybrid")
    scores = [rank["relevance_score"] for rank in other["results"]]
    assert scores == [rank["score"] for rank in ranks]
    (model,) = (await client.get("/models")).json()["data"]
    assert model["capabilities"] == ["embed", "rerank"]


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ({"dense": 0}, "one of the weights has to be above 0"),
        ({"dense": -1}, "weights"),
        ({"colbert": 1}, "weights"),
    ],
    ids=str,
)
async def test_weights_that_do_not_fit(client: Client, weights: Any, problem: str) -> None:
    body = {"query": QUERY, "texts": TEXTS, "weights": weights}
    reply = await client.post("/rerank", json=body)
    assert reply.status_code == 422
    assert problem in reply.text


async def test_weights_take_a_model_with_three_vectors(late_artifact: Artifact) -> None:
    async with serving(late_artifact) as client:
        body = {"query": "a", "texts": ["b"], "weights": {"dense": 1}}
        reply = await client.post("/rerank", json=body)
    assert reply.status_code == 422
    assert "late has no dense, sparse and multi-vector scores" in reply.text


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("others", [[], ["attention"]])
async def test_kserve_has_all_vectors(
    client: Client, artifact: Artifact, reference: FlagEmbedding, binary: bool, others: list[str]
) -> None:
    name = artifact.manifest.model
    described = (await client.get(f"/v2/models/{name}")).json()["outputs"]
    shapes = {one["name"]: one["shape"] for one in described}
    assert shapes["multivector"] == [-1, SIZE]
    names = [one for one in shapes if one.startswith(("sparse", "multi", "pooled"))]
    assert len(names) == 6
    body = in_json(
        TEXTS,
        [len(TEXTS)],
        outputs=[{"name": one} for one in [*names, *others]],
        parameters={"binary_data_output": binary},
    )
    found = tensors(await client.post(f"/v2/models/{name}/infer", json=body))
    assert [*found] == [*names, *others]
    for index, text in enumerate(TEXTS):
        expected = reference.vectors(text)
        np.testing.assert_allclose(found["pooled"][index], expected.dense, atol=1e-5)
        start, end = found["multivector_cu_seqlens"][index : index + 2]
        np.testing.assert_allclose(found["multivector"][start:end], expected.colbert, atol=1e-5)
        start, end = found["sparse_cu_seqlens"][index : index + 2]
        assert found["sparse_indices"][start:end].tolist() == sorted(expected.sparse)
        weights = [expected.sparse[word] for word in sorted(expected.sparse)]
        np.testing.assert_allclose(found["sparse_values"][start:end], weights, atol=1e-5)


async def test_kserve_takes_options_of_dense_vectors_only_with_them(
    client: Client, artifact: Artifact
) -> None:
    body = in_json(["a"], [1], outputs=[{"name": "sparse_values"}], parameters={"dimensions": 3})
    reply = await client.post(f"/v2/models/{artifact.manifest.model}/infer", json=body)
    assert reply.status_code == 400
    assert "parameters.dimensions applies to pooled or embeddings" in reply.json()["error"]


@pytest.mark.parametrize("logit", [0.0, 3.5, -3.5, 90.0, -80.0, 2000.0, -2000.0])
def test_one_label_is_scipys_expit(logit: float) -> None:
    (found,) = probabilities(np.array([logit], np.float32))
    assert found == pytest.approx(float(expit(logit)), rel=1e-6)


def test_several_labels_are_scipys_softmax() -> None:
    for seed, scale in enumerate((1, 10, 1000)):
        logits = (scale * np.random.default_rng(seed).standard_normal(5)).astype(np.float32)
        found = probabilities(logits)
        np.testing.assert_allclose(found, softmax(logits.astype(np.float64)), rtol=1e-6)
        assert found.dtype == np.float32


def test_a_label_takes_its_place_in_the_template() -> None:
    assert label_texts(["cat", "{}"], None) == ["This is a photo of cat.", "This is a photo of {}."]
    assert label_texts(["cat"], "{} {0}") == ["cat {0}"]
    for template in ("", "a photo", "{} and {}"):
        with pytest.raises(Unprocessable, match=r"template: put \{\} once"):
            label_texts(["cat"], template)


def test_logits_are_transformers() -> None:
    """Of pictures and texts whose vectors are given; scale and bias are not 1 and 0."""
    torch.manual_seed(0)
    model = SiglipModel(
        SiglipConfig(text_config=TEXT | {"projection_size": 16}, vision_config=VISION)
    )
    with torch.no_grad():
        model.logit_scale.fill_(1.3)
        model.logit_bias.fill_(-0.7)
        found = model(torch.randint(3, 9, (4, 6)), torch.randn(2, 3, 28, 28))
    dual = DualConfig(kind="siglip", logit_scale=np.exp(1.3), logit_bias=-0.7, vision_sha256="")
    logits = label_logits(found.image_embeds.numpy(), found.text_embeds.numpy(), dual)
    np.testing.assert_allclose(logits, found.logits_per_image.numpy(), atol=1e-5)
