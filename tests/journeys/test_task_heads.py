"""Checkpoints with task heads, from their files to replies, against sentence-transformers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SparseEncoder
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, pipeline

from model.artifact.golden import read_golden
from model.artifact.manifest import (
    FILES,
    GRAPHS,
    TASK_FILES,
    TASK_WEIGHTS,
    Artifact,
    RuntimeName,
    load_artifact,
    record_file,
    write_manifest,
)
from model.config.precision import Precision
from model.errors import ArtifactError, VerificationError
from model.export.serving import serving_copy
from model.export.verify import verify
from model.runtimes.capabilities import TaskHead, capability
from model.runtimes.pytorch import load_modules
from model.runtimes.registry import load_runtime
from service.artifacts.opening import find_checkpoint
from service.engines.onnx import OnnxEngine
from service.engines.process import check_installed
from service.errors import EngineNotInstalled
from service.health.golden import GoldenCheck
from service.settings import Settings
from tests.model.checkpoints import edit_json
from tests.model.logit_checkpoints import (
    published,
    word_logits,
    write_cross_encoder,
    write_reranker,
)
from tests.model.task_checkpoints import write_sparse_checkpoint, write_task_checkpoint
from tests.service.harness import serving

pytestmark = [pytest.mark.slow, pytest.mark.anyio]
QUERY = "the cat a b"
TEXTS = ["the cat . x", "y z the the", "a b c d e f", "", "q " * 60]


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cross-encoder whose task head has a mean, a transform and a norm.

    Its one layer has no window, whose graph takes long to export.
    """
    folder = tmp_path_factory.mktemp("ranking") / "checkpoint"
    sizes = {"num_labels": 1, "num_hidden_layers": 1}
    return write_task_checkpoint(folder, family="ModernBert", **sizes)


@pytest.fixture(scope="module")
def ranking_artifact(exported: Callable[..., Artifact], ranking: Path) -> Artifact:
    return exported(ranking, "ranking")


def edited(artifact: Artifact, folder: Path) -> Artifact:
    """Return an artifact whose manifest has the hashes of its present files."""
    files = {name: record_file(folder / name) for name in artifact.manifest.file_names}
    write_manifest(folder, artifact.manifest.model_copy(update={"files": files}))
    return load_artifact(folder)


async def test_a_cross_encoder_over_http(ranking: Path, ranking_artifact: Artifact) -> None:
    reference = CrossEncoder(str(ranking), device="cpu")
    pairs = [(QUERY, text) for text in TEXTS]
    expected = {
        False: reference.predict(pairs),
        True: reference.predict(pairs, activation_fn=torch.nn.Identity()),
    }
    async with serving(ranking_artifact) as client:
        for raw, scores in expected.items():
            body = {"query": QUERY, "texts": TEXTS, "truncate": True, "raw_scores": raw}
            ranks = (await client.post("/rerank", json=body)).json()
            found = [rank["score"] for rank in sorted(ranks, key=lambda rank: rank["index"])]
            np.testing.assert_allclose(found, scores, atol=1e-5)
            body = {"inputs": pairs, "truncate": True, "raw_scores": raw}
            labels = (await client.post("/predict", json=body)).json()
            np.testing.assert_allclose([one[0]["score"] for one in labels], scores, atol=1e-5)
        assert (await client.post("/encode", json={"inputs": "a"})).status_code == 200


@pytest.mark.parametrize("saved", [True, False], ids=["sentence-transformers", "model card"])
async def test_a_reranker_by_logits_over_http(
    exported: Callable[..., Artifact], tmp_path: Path, saved: bool
) -> None:
    """Scores are those of the words yes and no after the published text, in every dialect."""
    sizes = {"num_hidden_layers": 1}
    folder = plain = write_reranker(tmp_path / "plain", **sizes)
    if saved:
        folder = write_cross_encoder(tmp_path / "saved", **sizes)
    else:
        reported: list[str] = []
        settings = Settings(model=str(plain), cache_folder=tmp_path / "cache")
        assert find_checkpoint(settings, reported.append) == plain
        folder = find_checkpoint(settings.model_copy(update={"pooling": "yes-no"}), reported.append)
        assert "`--pooling yes-no` serves it as Qwen3-Reranker" in reported[0]
        assert reported[1] == f"{plain} gives scores of pairs, as `--pooling yes-no` says"
    documents = ["The cat sat on the mat.", "no doubt", "Straße <think>"]
    logits = word_logits(plain, [published(QUERY, text) for text in documents])
    chances = torch.softmax(logits, dim=-1)[:, 1].tolist()
    body = {"query": QUERY, "documents": documents}
    async with serving(exported(folder, f"logit-{'st' if saved else 'plain'}")) as client:
        ranks = (await client.post("/rerank", json={"query": QUERY, "texts": documents})).json()
        assert {rank["index"]: rank["score"] for rank in ranks} == pytest.approx(
            dict(enumerate(chances)), abs=1e-5
        )
        raw = {"query": QUERY, "texts": documents, "raw_scores": True}
        ranks = (await client.post("/rerank", json=raw)).json()
        differences = (logits[:, 1] - logits[:, 0]).tolist()
        assert {rank["index"]: rank["score"] for rank in ranks} == pytest.approx(
            dict(enumerate(differences)), abs=1e-4
        )
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            reply = (await client.post(path, json={**body, "model": "any"})).json()
            found = {one["index"]: one["relevance_score"] for one in reply["results"]}
            assert found == pytest.approx(dict(enumerate(chances)), abs=1e-5)
        alone = await client.post("/predict", json={"inputs": "The cat"})
        assert alone.status_code == 422
        assert "inputs[0] is one text; this model scores pairs" in alone.text
        encoded = await client.post("/attention", json={"inputs": [[QUERY, documents[0]]]})
        offsets = encoded.json()["results"][0]["offsets"]
        assert (encoded.status_code, max(offsets)) == (200, [22, 23])


async def test_a_sparse_encoder_over_http(
    exported: Callable[..., Artifact], tmp_path: Path
) -> None:
    folder = write_sparse_checkpoint(tmp_path / "a", "DistilBert", "sum", "log1p_relu")
    encoder = SparseEncoder(str(folder), device="cpu")
    texts = [text for text in TEXTS if text]  # an empty one is TEI's 400
    expected = encoder.encode(texts, convert_to_sparse_tensor=False, convert_to_tensor=True)
    async with serving(exported(folder, "splade")) as client:
        body = {"inputs": texts, "truncate": True}
        vectors = (await client.post("/embed_sparse", json=body)).json()
    found = np.zeros(expected.shape, np.float32)
    for row, vector in zip(found, vectors, strict=True):
        row[[one["index"] for one in vector]] = [one["value"] for one in vector]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["Bert", pytest.param("DistilBert", marks=pytest.mark.nightly)])
async def test_a_masked_language_model_is_sparse_by_its_setting(
    exported: Callable[..., Artifact], tmp_path: Path, family: str
) -> None:
    """The vector is max log(1 + relu) of transformers' logits, without `modules.json`."""
    folder = write_task_checkpoint(tmp_path / "a", "ForMaskedLM", family)
    reported: list[str] = []
    plain = Settings(model=str(folder), cache_folder=tmp_path / "cache")
    assert find_checkpoint(plain, reported.append) == folder
    settings = plain.model_copy(update={"pooling": "splade"})
    pooled = find_checkpoint(settings, reported.append)
    assert "gives dense vectors" in reported[0]
    assert "`--pooling splade` gives its sparse vectors" in reported[0]
    assert reported[1:] == [f"{folder} gives sparse vectors, as `--pooling splade` says"]
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [text for text in TEXTS if text]
    async with serving(exported(pooled, f"masked-{family}")) as client:
        body = {"inputs": texts, "truncate": True}
        vectors = (await client.post("/embed_sparse", json=body)).json()
        assert (await client.post("/embed", json=body)).status_code == 424
    for text, vector in zip(texts, vectors, strict=True):
        inputs = tokenizer(text, truncation=True, max_length=36, return_tensors="pt")
        with torch.no_grad():
            logits = model(**inputs).logits[0]
        expected = torch.log1p(torch.relu(logits)).amax(dim=0).numpy()
        found = np.zeros_like(expected)
        found[[one["index"] for one in vector]] = [one["value"] for one in vector]
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)


async def test_a_classifier_of_tokens_over_http(
    exported: Callable[..., Artifact], tmp_path: Path
) -> None:
    """Spans equal transformers' pipeline, whose tokenizer gives the model no segments."""
    names = ["O", "B-PER", "I-PER", "LOC"]
    folder = write_task_checkpoint(
        tmp_path / "a", "ForTokenClassification", id2label=dict(enumerate(names))
    )
    inputs = ["input_ids", "attention_mask"]
    edit_json(folder / "tokenizer_config.json", model_input_names=inputs)
    classify = pipeline("token-classification", model=str(folder), device="cpu")
    texts = ["the cat . x cats", "y zthe the, catthe a", "abcdef the.cat", ""]
    several = 0
    async with serving(exported(folder, "tokens")) as client:
        for strategy in ("none", "simple", "first", "average", "max"):
            body = {"inputs": [[text] for text in texts], "aggregation": strategy}
            found = (await client.post("/predict", json=body)).json()
            label = "entity" if strategy == "none" else "entity_group"
            for text, of_text in zip(texts, found, strict=True):
                expected = classify(text, aggregation_strategy=strategy)
                assert of_text == [
                    {
                        "score": pytest.approx(float(one["score"]), abs=1e-5),
                        "label": one[label],
                        "start": one["start"],
                        "end": one["end"],
                        "text": text[one["start"] : one["end"]],
                    }
                    for one in expected
                ]
                several += len(of_text)
        pair = (await client.post("/encode", json={"inputs": [["the cat", "a b"]]})).json()
    assert several > 20
    given = AutoTokenizer.from_pretrained(folder)("the cat", "a b", return_tensors="pt")
    with torch.inference_mode():
        states = AutoModel.from_pretrained(folder).eval()(**given).last_hidden_state[0]
    np.testing.assert_allclose(pair["results"][0]["embeddings"], states.numpy(), atol=1e-4)
    assert pair["results"][0]["segment_ids"] == [0] * 4 + [1] * 3


@pytest.mark.parametrize(
    ("name", "precision"),
    [("onnx", "fp32"), ("onnx", "fp16"), ("openvino", "fp32"), ("pytorch", "fp32")],
)
def test_every_runtime_has_the_same_scores(
    ranking_artifact: Artifact, name: RuntimeName, precision: Precision
) -> None:
    """Every precision but fp32 takes the device path of ONNX Runtime, also on a CPU."""
    head = load_modules(ranking_artifact).head
    assert head is not None
    manifest = ranking_artifact.manifest.model_copy(update={"precision": precision})
    artifact = Artifact(ranking_artifact.folder, manifest, ranking_artifact.sha256)
    own = capability(load_runtime(artifact, name=name), TaskHead)
    assert own.config == manifest.task
    rows = torch.randn((5, 12), generator=torch.manual_seed(0))
    found = own.score(rows.numpy())
    np.testing.assert_allclose(found, head(rows).numpy(), atol=1e-5)
    assert found.shape == (5, 1)


def test_the_artifact_has_two_files_more(ranking_artifact: Artifact, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ranking_artifact.folder, tmp_path / "copy"))
    names = {path.name for path in folder.iterdir()}
    assert names == {*FILES, *TASK_FILES, "manifest.json"}
    artifact = serving_copy(ranking_artifact, tmp_path / "serving")
    with pytest.raises(ArtifactError, match=r"--serving-only, without .* PyTorch needs"):
        load_modules(artifact)
    with pytest.raises(EngineNotInstalled, match=r"--serving-only, without .* PyTorch needs"):
        check_installed(artifact)
    (folder / GRAPHS["task"]).unlink()
    with pytest.raises(ArtifactError, match=f"{GRAPHS['task']} is missing"):
        load_artifact(folder)


def test_a_wrong_task_head_is_found(ranking_artifact: Artifact, tmp_path: Path) -> None:
    """The verification at export and the golden texts at startup find it."""
    assert ranking_artifact.manifest.verification.max_abs_diff_below["task"] is not None
    assert all(text.scores is not None for text in read_golden(ranking_artifact))
    GoldenCheck(ranking_artifact)(OnnxEngine(ranking_artifact, "cpu", threads=1))
    folder = Path(shutil.copytree(ranking_artifact.folder, tmp_path / "copy"))
    tensors = load_file(folder / TASK_WEIGHTS)
    save_file(tensors | {"output.bias": tensors["output.bias"] + 0.01}, folder / TASK_WEIGHTS)
    found = verify(edited(ranking_artifact, folder)).comparison
    assert {str(key) for key, one in found.differences.items() if not one.passed} == {"task"}

    tensors = load_file(folder / "golden.safetensors")
    save_file(tensors | {"scores.0": tensors["scores.0"] + 0.01}, folder / "golden.safetensors")
    artifact = edited(ranking_artifact, folder)
    with pytest.raises(VerificationError, match="first: task"):
        GoldenCheck(artifact)(OnnxEngine(artifact, "cpu", threads=1))
