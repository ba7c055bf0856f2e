"""/attention of a foreign graph with attention outputs, against transformers."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load
from transformers import AutoModel, AutoTokenizer

from model.artifact.manifest import Artifact
from service.artifacts.opening import FOREIGN_WITH_MAPS, open_artifact
from service.engines.onnx import OnnxEngine
from service.inference.attention import graph_attention
from service.inference.attention.selection import AttentionSelection
from service.inference.attention.stream import AttentionStream
from service.inference.timings import Timings
from service.scheduler.scheduler import Scheduler
from service.settings import Settings
from tests.foreign import checkpoint_of, exported_from, write_foreign
from tests.model.checkpoints import edit_json
from tests.service.harness import CONFIG, assert_problem, serving

TEXTS = ["the cat.", "a", "the the cat cat the b c", ""]
NAMES = ("attention_10", "attention_11")

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_foreign(tmp_path_factory.mktemp("maps") / "tiny", maps=NAMES)


@pytest.fixture(scope="module")
def foreign(folder: Path) -> Artifact:
    return exported_from(folder)


@pytest.fixture(scope="module")
async def client(foreign: Artifact, anyio_backend: str) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(foreign, OnnxEngine(foreign, "cpu", threads=2)) as client:
        yield client


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Any]:
    """Return the maps `[L, N, S, S]` of each text."""
    whole = checkpoint_of(folder)
    tokenizer = AutoTokenizer.from_pretrained(whole)
    model = AutoModel.from_pretrained(whole, attn_implementation="eager").eval()
    with torch.inference_mode():
        outputs = [
            model(**tokenizer(text, return_tensors="pt"), output_attentions=True) for text in TEXTS
        ]
    return [torch.cat(output.attentions).numpy() for output in outputs]


async def test_maps_are_transformers(client: httpx.AsyncClient, expected: list[Any]) -> None:
    asked: dict[str, Any] = {"inputs": TEXTS, "include": ["weights", "stats", "rollout"]}
    for layers, heads in ((None, None), ([-1, 0], [2, 0])):
        reply = await client.post("/attention", json=asked | {"layers": layers, "heads": heads})
        assert reply.status_code == 200, reply.text
        content = reply.json()
        of_layers, of_heads = content["layers"], content["heads"]
        assert (of_layers, of_heads) == ((layers and [1, 0]) or [0, 1], heads or [0, 1, 2])
        for maps, found in zip(expected, content["results"], strict=True):
            chosen = maps[of_layers][:, of_heads]
            np.testing.assert_allclose(found["attention"], chosen, rtol=0, atol=1e-5)
            confidence = chosen.max(axis=-1).mean(axis=-1)
            np.testing.assert_allclose(found["stats"]["confidence"], confidence, atol=1e-5)
            tokens = maps.shape[-1]
            steps = [(layer.mean(axis=0) + np.eye(tokens)) / 2 for layer in maps]
            np.testing.assert_allclose(found["rollout"], steps[1] @ steps[0], rtol=0, atol=1e-5)


async def test_the_binary_form(client: httpx.AsyncClient, expected: list[Any]) -> None:
    headers = {"accept": "application/vnd.safetensors"}
    body = {"inputs": TEXTS, "top_k": 2}
    reply = await client.post("/attention", json=body, headers=headers)
    tensors = load(reply.content)
    for index, maps in enumerate(expected):
        largest = -np.sort(-maps, axis=-1)[..., :2]
        np.testing.assert_allclose(tensors[f"attention.{index}.values"], largest, atol=1e-5)


@pytest.mark.parametrize(
    ("route", "asked", "lacks"),
    [
        ("/attention", {"ablate": [{"layer": 0, "head": 0}]}, "what a head adds"),
        ("/attention", {"include": ["norms"]}, "what a head adds"),
        ("/attention", {"include": ["weights", "norm_rollout"]}, "what a head adds"),
        ("/explain", {"inputs": [TEXTS[:2]], "include": ["heads"]}, "what a head adds"),
        ("/attention/scores", {"layer": 0, "head": 0}, "what a head compares"),
        ("/encode", {"layer": 0}, "hidden state 0"),
        ("/attention", {"backend": "torch"}, "what PyTorch computes with"),
    ],
)
async def test_what_it_lacks_is_a_501(
    client: httpx.AsyncClient, route: str, asked: dict[str, Any], lacks: str
) -> None:
    reply = await client.post(route, json={"inputs": TEXTS[:1]} | asked)
    assert_problem(reply, 501, f"alone, not {lacks}: `headscope export`", "Backend")


async def test_the_maps_of_all_layers_are_bounded(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = len(["[CLS]", "the", "cat", ".", "[SEP]"])
    limit = 4 * 2 * 3 * tokens**2
    monkeypatch.setattr(graph_attention, "LAYER_BYTES", limit)
    assert (await client.post("/attention", json={"inputs": TEXTS[0]})).status_code == 200
    monkeypatch.setattr(graph_attention, "LAYER_BYTES", limit - 1)
    reply = await client.post("/attention", json={"inputs": TEXTS[:1], "layers": [0], "heads": [0]})
    assert_problem(
        reply, 413, f"inputs[0] has {tokens} tokens: a foreign graph gives", "Validation"
    )


@pytest.mark.parametrize("kind", [AttentionStream, graph_attention.GraphAttentionStream])
def test_a_stream_is_complete_once_created(kind: type[AttentionStream]) -> None:
    selection = AttentionSelection({"encoder": ((0,), (1,))})
    scheduler = cast("Scheduler", None)
    stream = kind(scheduler, CONFIG, selection, [], Timings(0, 0.0, 0.0))
    assert all(hasattr(stream, field.name) for field in dataclasses.fields(stream))
    assert (stream.layers.encoder, len(stream.passes)) == ((0,), 1)


async def test_words_of_bm42(client: httpx.AsyncClient) -> None:
    body = {"inputs": "the cat", "method": "bm42"}
    reply = await client.post("/embed_sparse", json=body)
    assert [len(vector) for vector in reply.json()] == [1]


async def test_a_family_that_nobody_knows(
    folder: Path, expected: list[Any], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "unknown"))
    edit_json(copy / "config.json", model_type="somebodys")
    said: list[str] = []
    artifact = open_artifact(Settings(model=str(copy)), said.append)
    assert said[-1] == FOREIGN_WITH_MAPS
    async with serving(artifact) as client:
        info = (await client.get("/info")).json()
        assert (info["layers"], info["heads"], info["attention_score"]) == (2, 3, None)
        reply = (await client.post("/attention", json={"inputs": TEXTS[0]})).json()
        np.testing.assert_allclose(reply["results"][0]["attention"], expected[0], rtol=0, atol=1e-5)
        reply = await client.post("/encode", json={"inputs": TEXTS, "layer": 2})
        assert reply.status_code == 200
