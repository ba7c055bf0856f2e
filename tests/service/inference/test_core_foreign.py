"""Foreign graph behind the application: what it serves, and errors for the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from service.errors import EngineNotInstalled
from tests.foreign import checkpoint_of, exported_from, write_foreign
from tests.model.checkpoints import edit_json
from tests.service.harness import assert_problem, serving

TEXTS = ["the cat.", "a", "the the cat cat the", ""]
LACKS = "is a foreign ONNX graph, which gives the last hidden state alone, not "
REMEDY = "`headscope export` of its checkpoint in safetensors has it"

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_foreign(tmp_path_factory.mktemp("foreign") / "tiny")


@pytest.fixture(scope="module")
def foreign(folder: Path) -> Artifact:
    return exported_from(folder)


@pytest.fixture(scope="module")
async def client(foreign: Artifact, anyio_backend: str) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(foreign, OnnxEngine(foreign, "cpu", threads=2)) as client:
        yield client


async def test_tokens_are_transformers_and_vectors_sentence_transformers(
    client: httpx.AsyncClient, folder: Path
) -> None:
    whole = checkpoint_of(folder)
    tokenizer, model = AutoTokenizer.from_pretrained(whole), AutoModel.from_pretrained(whole)
    pooled = SentenceTransformer(str(whole), device="cpu").encode(TEXTS)
    for layer in (-1, 2):
        reply = await client.post("/encode", json={"inputs": TEXTS, "layer": layer})
        assert reply.status_code == 200, reply.text
        for text, vector, found in zip(TEXTS, pooled, reply.json()["results"], strict=True):
            np.testing.assert_allclose(found["pooled"], vector, rtol=0, atol=1e-4)
            with torch.inference_mode():
                expected = model.eval()(**tokenizer(text, return_tensors="pt")).last_hidden_state
            np.testing.assert_allclose(found["embeddings"], expected[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("route", "asked", "lacks"),
    [
        ("/attention", {}, "attention weights"),
        ("/attention", {"include": ["stats"], "layers": [7]}, "attention weights"),
        ("/attention", {"ablate": [{"layer": 0, "head": 0}]}, "attention weights"),
        ("/encode", {"layer": 0}, "hidden state 0"),
        ("/encode", {"layer": -2, "outputs": ["pooled"]}, "hidden state 1"),
        ("/encode", {"layers": [-1, 0]}, "hidden state 0"),
        ("/encode", {"ablate": [{"layer": 0, "head": 0}]}, "what a head adds"),
        ("/encode", {"backend": "torch"}, "what PyTorch computes with"),
        ("/verify", {}, "what PyTorch computes with"),
    ],
)
async def test_what_it_lacks_is_a_501(
    client: httpx.AsyncClient, route: str, asked: dict[str, object], lacks: str
) -> None:
    reply = await client.post(route, json={"inputs": TEXTS[:1]} | asked)
    problem = assert_problem(reply, 501, f"{LACKS}{lacks}: {REMEDY}", "Backend")
    assert not problem["retryable"]


async def test_info(client: httpx.AsyncClient, foreign: Artifact) -> None:
    info = (await client.get("/info")).json()
    assert (info["runtime"], info["engine"], info["precision"]) == ("foreign", "onnx", "fp32")
    assert (info["layers"], info["heads"], info["hidden_size"]) == (2, 3, 12)
    assert info["verification"]["reference"] == "itself"
    assert info["model_sha"] == foreign.manifest.files["encoder.onnx.data"].sha256


async def test_a_probe_asks_for_what_there_is(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.health.readiness.FRESH_SECONDS", -1.0)
    assert (await client.get("/health/ready")).json() == {"status": "ready"}


async def test_a_family_that_nobody_knows(tmp_path: Path) -> None:
    folder = write_foreign(tmp_path / "unknown")
    edit_json(folder / "config.json", model_type="somebodys")
    async with serving(exported_from(folder)) as client:
        info = (await client.get("/info")).json()
        unknown = ("layers", "heads", "attention_score", "attention_normalizer")
        assert [info[name] for name in unknown] == [None] * 4
        reply = await client.post("/encode", json={"inputs": TEXTS})
        pooled = [result["pooled"] for result in reply.json()["results"]]
        assert_problem(await client.post("/attention", json={"inputs": "a"}), 501, LACKS, "Backend")
        reply = await client.post("/encode", json={"inputs": TEXTS, "layer": 1})
        assert_problem(reply, 422, "layer 1 is not in -1 … 0")
    expected = SentenceTransformer(str(checkpoint_of(folder)), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(pooled, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("settings", [{"fallback": "torch"}, {"verify_share": 0.5}])
async def test_what_needs_pytorch_does_not_start(
    foreign: Artifact, settings: dict[str, object]
) -> None:
    with pytest.raises(EngineNotInstalled, match="not what PyTorch computes with"):
        async with serving(foreign, **settings):
            pass
