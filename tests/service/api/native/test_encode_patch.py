"""Heads' outputs patched from one text to another, and parts of layers, against transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load
from torch import Tensor

from model.artifact.manifest import Artifact
from model.export.serving import serving_copy
from service.engines.onnx import OnnxEngine
from tests.service.api.native.hooked import Change, Hooked
from tests.service.api.native.test_encode_layers import BINARY, close, unit
from tests.service.harness import assert_problem, serving
from tests.service.several import fake_of

pytestmark = pytest.mark.anyio

CLEAN, CORRUPT, THIRD = "the red cat sat", "the old dog ran", "one two three four"
TEXTS = [CLEAN, CORRUPT, THIRD]
LAYERS = [0, 1, 2]
Patch = dict[str, int]


@pytest.fixture(scope="module")
def reference(small_checkpoint: Path) -> Hooked:
    reference = Hooked(small_checkpoint)
    assert len({len(reference.states(text)[0]) for text in TEXTS}) == 1
    return reference


def patched(
    reference: Hooked, patches: Sequence[Patch], text: int, ablated: Sequence[tuple[int, int]] = ()
) -> list[Tensor]:
    """Return all states of a text, patched with other texts' head outputs of unpatched runs."""
    changes: dict[tuple[int, int], Change] = dict.fromkeys(ablated, torch.zeros_like)
    for patch in patches:
        place, source = (patch["layer"], patch["head"]), patch["from"]
        if patch.get("to", text) == text and (source != text or "to" in patch):
            output = reference.heads(TEXTS[source], dict.fromkeys(ablated, torch.zeros_like))[place]
            changes[place] = lambda _, output=output: output
    return reference.states(TEXTS[text], changes)


PATCHES: list[list[Patch]] = [
    [{"layer": 0, "head": 1, "from": 0}],
    [{"layer": 1, "head": 0, "from": 2}],
    [{"layer": 0, "head": 0, "from": 0, "to": 1}, {"layer": 1, "head": 1, "from": 2, "to": 1}],
    # each of two texts gets a head's output of the other text's unpatched run
    [{"layer": 0, "head": 0, "from": 0, "to": 1}, {"layer": 0, "head": 0, "from": 1, "to": 0}],
    [{"layer": 0, "head": 0, "from": 1, "to": 2}, {"layer": 1, "head": 0, "from": 2, "to": 0}],
]


@pytest.mark.usefixtures("started_torch")
@pytest.mark.parametrize("backend", ["onnx", "torch"])
@pytest.mark.parametrize("patches", PATCHES)
async def test_states_are_what_hooks_give(
    client: httpx.AsyncClient, reference: Hooked, patches: list[Patch], backend: str
) -> None:
    body = {"inputs": TEXTS, "patch": patches, "layers": LAYERS, "backend": backend}
    asked = body | {"pooling": "mean", "normalize": True}
    reply = await client.post("/encode", json=asked)
    assert reply.status_code == 200, reply.text
    apart = []
    for text, result in enumerate(reply.json()["results"]):
        wanted = patched(reference, patches, text)
        apart.append((wanted[2] - reference.states(TEXTS[text])[2]).abs().max().item())
        close(result["embeddings"], torch.stack(wanted))
        close(result["pooled"], torch.stack([unit(state) for state in wanted]))
    assert max(apart) > 1e-2


async def test_without_layers_the_reply_has_the_usual_form(
    client: httpx.AsyncClient, reference: Hooked
) -> None:
    body = {"inputs": TEXTS, "patch": PATCHES[0], "pooling": "mean", "normalize": True}
    results = (await client.post("/encode", json=body)).json()["results"]
    for text, result in enumerate(results):
        wanted = patched(reference, PATCHES[0], text)[2]
        close(result["embeddings"], wanted)
        close(result["pooled"], unit(wanted))


async def test_a_head_patched_from_its_own_text_changes_nothing(
    client: httpx.AsyncClient,
) -> None:
    patch = [{"layer": 0, "head": 1, "from": 0, "to": 0}]
    plain, same = [
        (await client.post("/encode", json={"inputs": CLEAN} | body)).json()["results"][0]
        for body in ({}, {"patch": patch})
    ]
    np.testing.assert_allclose(same["embeddings"], plain["embeddings"], rtol=0, atol=1e-5)


async def test_ablated_heads_are_so_in_every_run(
    client: httpx.AsyncClient, reference: Hooked
) -> None:
    patches, ablated = [{"layer": 1, "head": 1, "from": 0}], [(0, 0)]
    body = {"inputs": TEXTS, "patch": patches, "ablate": [{"layer": 0, "head": 0}]}
    for text, result in enumerate((await client.post("/encode", json=body)).json()["results"]):
        close(result["embeddings"], patched(reference, patches, text, ablated)[2])


PARTS = ["attended", "residual", "mlp"]


def parts_of(reference: Hooked, states: list[Tensor]) -> dict[str, Tensor]:
    """Return the parts that transformers' modules add to states 1 … L of a text, `[L, S, H]`."""
    found: dict[str, list[Tensor]] = {name: [] for name in PARTS}
    with torch.no_grad():
        for layer, state in zip(reference.model.encoder.layer, states, strict=False):
            attended = layer.attention.output.dense(layer.attention.self(state[None])[0])
            residual = layer.attention.output.LayerNorm(state + attended)
            mlp = layer.output.dense(layer.intermediate(residual))
            for name, part in zip(PARTS, (attended, residual, mlp), strict=True):
                found[name].append(part[0])
    return {name: torch.stack(each) for name, each in found.items()}


@pytest.mark.usefixtures("started_torch")
@pytest.mark.parametrize("backend", ["onnx", "torch"])
async def test_parts_are_of_the_layer_that_writes_the_state(
    client: httpx.AsyncClient, reference: Hooked, backend: str
) -> None:
    body = {"inputs": TEXTS, "layers": [2, 1], "include": PARTS, "backend": backend}
    results = (await client.post("/encode", json=body)).json()["results"]
    for text, result in zip(TEXTS, results, strict=True):
        states = reference.states(text)
        for name, wanted in parts_of(reference, states).items():
            close(result[name], wanted.flip(0))
        # the identity of the reply's own numbers, by transformers' norms
        for place, number in enumerate((1, 0)):
            layer = reference.model.encoder.layer[number]
            entering, attended, residual, mlp = (
                torch.tensor(each)
                for each in (
                    states[number].tolist(),
                    *(result[name][place] for name in PARTS),
                )
            )
            with torch.no_grad():
                close(residual, layer.attention.output.LayerNorm(entering + attended))
                written = layer.output.LayerNorm(residual + mlp)
            close(result["embeddings"][place], written)


async def test_parts_of_a_patched_text_are_of_the_patched_run(
    client: httpx.AsyncClient, reference: Hooked
) -> None:
    patches = [{"layer": 0, "head": 1, "from": 0, "to": 1}]
    body = {"inputs": TEXTS, "layers": [1, 2], "include": ["mlp"], "patch": patches}
    reply = await client.post("/encode", json=body, headers=BINARY)
    tensors = load(reply.content)
    rows = tensors["cu_seqlens"]
    for text in range(3):
        mlp = tensors["mlp"][:, rows[text] : rows[text + 1]]
        states = patched(reference, patches, text)
        if text != 1:
            close(mlp, parts_of(reference, states)["mlp"])
        else:  # the input of layer 0 is not patched, but its heads are
            close(mlp[1], parts_of(reference, states)["mlp"][1])
            norm = reference.model.encoder.layer[0].output.LayerNorm
            assert (torch.tensor(mlp[0]) - parts_of(reference, states)["mlp"][0]).abs().max() > 1e-3
            residual = await residual_of(client, patches)
            with torch.no_grad():
                close(norm(torch.tensor(mlp[0]) + residual), states[1])


async def residual_of(client: httpx.AsyncClient, patches: list[Patch]) -> Tensor:
    body = {"inputs": TEXTS, "layer": 1, "include": ["residual"], "patch": patches}
    reply = await client.post("/encode", json=body)
    return torch.tensor(reply.json()["results"][1]["residual"])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"patch": [{"layer": 2, "head": 0, "from": 0}]}, "patch: layer: 2 is not in -2 … 1"),
        ({"patch": [{"layer": 0, "head": 2, "from": 0}]}, "patch: head: 2 is not in -2 … 1"),
        ({"patch": [{"layer": 0, "head": 0, "from": 2}]}, "from: 2 is not in -2 … 1 of the inp"),
        ({"patch": [{"layer": 0, "head": 0, "from": 0, "to": 2}]}, "patch: to: 2 is not in"),
        (
            {"patch": [{"layer": 0, "head": 0, "from": 0}] * 2},
            "patch: head 0 of layer 0 is replaced twice in inputs[1]",
        ),
        (
            {"patch": [{"layer": 0, "head": 0, "from": 0}], "ablate": [{"layer": 0, "head": -2}]},
            "patch: head 0 of layer 0 is in `ablate` too",
        ),
        (
            {"patch": [{"layer": 0, "head": 0, "from": 0}], "inputs": "a"},
            "there is one input alone",
        ),
        (
            {"patch": [{"layer": 0, "head": 0, "from": 0}], "inputs": ["a", "a a"]},
            "inputs[0] has 3 tokens and inputs[1] 4",
        ),
        ({"patch": []}, "patch"),
        ({"include": ["mlp"], "layer": 0}, "hidden state 0 is the embeddings"),
        ({"include": ["mlp", "mlp"]}, "listed twice"),
        ({"include": ["weights"]}, "include"),
    ],
)
async def test_what_cannot_be_is_refused(
    client: httpx.AsyncClient, body: dict[str, Any], says: str
) -> None:
    reply = await client.post("/encode", json={"inputs": TEXTS[:2]} | body)
    assert_problem(reply, 422, says)


async def test_a_text_too_long_for_its_maps_is_refused(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.inference.layer_runs.LAYER_BYTES", 4 * 2 * 9**2)
    async with serving(artifact, fake_of(artifact)) as client:
        for tokens, status in ((9, 200), (10, 413)):
            body = {"inputs": " ".join(["a"] * (tokens - 2)), "include": ["mlp"]}
            assert (await client.post("/encode", json=body)).status_code == status


async def test_a_serving_only_artifact_says_so(tiny_artifact: Artifact, tmp_path: Path) -> None:
    """Requests without a patch are still answered."""
    copy = serving_copy(tiny_artifact, tmp_path / "serving")
    async with serving(copy, OnnxEngine(copy, "cpu", threads=1)) as client:
        assert (await client.post("/encode", json={"inputs": "a"})).status_code == 200
        for body in ({"include": ["mlp"]}, {"patch": PATCHES[0]}):
            reply = await client.post("/encode", json={"inputs": ["a", "b"]} | body)
            says = "--serving-only, without the float32 weights that `patch` or `include` needs"
            assert_problem(reply, 501, says, "Backend")
