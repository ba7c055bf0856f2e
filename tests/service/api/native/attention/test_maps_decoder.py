"""`POST /attention` of encoder–decoders, through ONNX: transformers' numbers for every kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load

from model.artifact.manifest import Artifact
from service.api.native.attention.replies import AttentionResult
from service.api.wire.media import SAFETENSORS
from service.engines.onnx import OnnxEngine
from tests.model.encoder_decoders import Pair, transformers_says
from tests.service import plain
from tests.service.harness import serving

pytestmark = pytest.mark.anyio
ALL = ["encoder", "decoder", "cross"]
TEXTS = ["w1 w2 w3 w4 w5 w6 w7 w8", "", "w9", "w3 w3", " ".join(f"w{n}" for n in range(40))]
TARGETS = ["w7 w8", "w4 w5 w6", "", " ".join(f"w{n}" for n in range(30, 55)), "w11 w12"]
"""Targets of mixed lengths, with an empty source and an empty target."""
BODY = {"inputs": TEXTS, "targets": TARGETS, "maps": ALL}


@pytest.fixture(scope="module")
async def served(
    translator: tuple[Path, Artifact], anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(translator[1], OnnxEngine(translator[1], "cpu", threads=2)) as client:
        yield client


async def results_of(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    response = await client.post("/attention", json=body)
    assert response.status_code == 200, response.text
    results: list[dict[str, Any]] = response.json()["results"]
    return results


def expected_of(checkpoint: Path, result: dict[str, Any]) -> Pair:
    ids = [np.array(result[name]) for name in ("token_ids", "target_token_ids")]
    return transformers_says(checkpoint, *ids)


def close(found: Any, wanted: Any, atol: float) -> None:
    assert np.shape(found) == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)


async def test_all_kinds_of_maps_are_transformers(
    served: httpx.AsyncClient, translator: tuple[Path, Artifact]
) -> None:
    await assert_maps(served, translator[0])


@pytest.mark.nightly
async def test_those_of_marian_too(
    exported: Callable[..., Artifact], encoder_decoders: Callable[[str], Path]
) -> None:
    checkpoint = encoder_decoders("marian")
    artifact = exported(checkpoint, "marian")
    async with serving(artifact, OnnxEngine(artifact, "cpu", threads=2)) as client:
        await assert_maps(client, checkpoint)


async def assert_maps(client: httpx.AsyncClient, checkpoint: Path) -> None:
    """Compare all kinds of maps, and the values derived from them, with transformers'."""
    include = ["weights", "stats", "rollout", "logprobs"]
    every = await results_of(client, **BODY, include=include)
    assert [len(one["tokens"]) for one in every] == [9, 1, 2, 3, 41]
    assert [len(one["target_tokens"]) for one in every] == [3, 4, 1, 26, 3]
    for found in every:
        wanted = expected_of(checkpoint, found)
        encoder = np.stack(wanted.encoder_maps)
        close(found["attention"], encoder, 1e-5)
        close(found["decoder_attention"], wanted.maps, 1e-5)
        close(found["cross_attention"], wanted.cross_maps, 1e-5)
        assert not np.triu(np.array(found["decoder_attention"]), 1).any()
        close(found["target_logprobs"], wanted.logprobs, 1e-4)
        close(found["rollout"], plain.rollout(encoder), 1e-5)
        for name, values in plain.cross_statistics(wanted.cross_maps, [-1]).items():
            close(found["cross_stats"][name], values, 1e-4)


async def test_norms_of_what_heads_add_are_transformers(
    served: httpx.AsyncClient, translator: tuple[Path, Artifact]
) -> None:
    """Norms are checked for both kinds of decoder heads, for encoder heads, and for some heads."""
    asked = BODY | {"include": ["norms"]}
    every = await results_of(served, **asked)
    some = await results_of(served, **asked, layers=[-1], heads=[1, 0])
    binary = await served.post("/attention", json=asked, headers={"accept": SAFETENSORS})
    tensors = load(binary.content)
    for i, (found, chosen) in enumerate(zip(every, some, strict=True)):
        wanted = expected_of(translator[0], found)
        for name, norms in (("decoder_norms", wanted.norms), ("cross_norms", wanted.cross_norms)):
            largest = norms.max()
            close(found[name] / largest, norms / largest, 1e-5)
            close(chosen[name] / largest, norms[-1:, [1, 0]] / largest, 1e-5)
            np.testing.assert_array_equal(tensors[f"{name}.{i}"], np.array(found[name], "f4"))
        assert np.shape(found["norms"]) == np.stack(wanted.encoder_maps).shape
        assert "cross_attention" not in found


async def test_layers_and_heads_are_of_each_kind_and_both_forms_are_one(
    served: httpx.AsyncClient, translator: tuple[Path, Artifact]
) -> None:
    asked = BODY | {"layers": [-1], "heads": [1, 0]}
    every = await results_of(served, **asked)
    headers = {"accept": SAFETENSORS}
    binary = await served.post("/attention", json=asked, headers=headers)
    tensors = load(binary.content)
    for i, found in enumerate(every):
        wanted = expected_of(translator[0], found)
        close(found["attention"], np.stack(wanted.encoder_maps)[-1:, [1, 0]], 1e-5)
        close(found["decoder_attention"], wanted.maps[-1:, [1, 0]], 1e-5)
        close(found["cross_attention"], wanted.cross_maps[-1:, [1, 0]], 1e-5)
        for name in ("attention", "decoder_attention", "cross_attention"):
            close(tensors[f"{name}.{i}"], np.array(found[name], "f4"), 1e-6)


async def test_parts_are_of_each_kind(
    served: httpx.AsyncClient, translator: tuple[Path, Artifact]
) -> None:
    """Pooled as torch does it: rows among the target's tokens, or the text's of its own maps."""
    asked = BODY | {"queries": [-1, 0], "max_size": 4}
    asked |= {"inputs": TEXTS[3:], "targets": TARGETS[3:]}
    every = await results_of(served, **asked)
    binary = await served.post("/attention", json=asked, headers={"accept": SAFETENSORS})
    tensors = load(binary.content)
    for i, found in enumerate(every):
        wanted = expected_of(translator[0], found)
        assert found.keys() <= AttentionResult.model_fields.keys()
        source, target = len(found["tokens"]), len(found["target_tokens"])
        kinds = (
            ("", np.stack(wanted.encoder_maps), source, source),
            ("decoder_", wanted.maps, target, target),
            ("cross_", wanted.cross_maps, target, source),
        )
        for prefix, maps, rows, columns in kinds:
            chosen, size = torch.tensor(maps[:, :, [-1, 0]]), (2, min(columns, 4))
            pooled = torch.nn.functional.adaptive_max_pool2d(chosen, size).numpy()
            close(found[f"{prefix}attention"], pooled, 1e-5)
            assert found[f"{prefix}queries"] == [rows - 1, 0]
            bins = found[f"{prefix}bins"]
            assert (bins["queries"], bins["keys"][-1][1]) == ([[0, 1], [1, 2]], columns)
            assert tensors[f"{prefix}queries.{i}"].tolist() == [rows - 1, 0]
            assert tensors[f"{prefix}bins.{i}.keys"].tolist() == bins["keys"]
            name = f"{prefix}attention.{i}"
            np.testing.assert_array_equal(tensors[name], np.array(found[name[:-2]], "f4"))


@pytest.mark.parametrize("of", ALL)
async def test_an_ablated_head_changes_what_the_target_is_worth(
    served: httpx.AsyncClient, translator: tuple[Path, Artifact], of: str
) -> None:
    """The reported shift is the difference of the log-probabilities with and without the head."""
    asked = {"inputs": TEXTS, "targets": TARGETS, "include": ["logprobs"]}
    heads = [{"layer": 0, "head": 1, "map": of}]
    before = await results_of(served, **asked)
    after = await results_of(served, **asked, ablate=heads)
    shifts = []
    for one, other in zip(before, after, strict=True):
        close(one["target_logprobs"], expected_of(translator[0], one).logprobs, 1e-4)
        shift = np.mean(other["target_logprobs"]) - np.mean(one["target_logprobs"])
        assert other["target_logprob_shift"] == pytest.approx(shift, abs=1e-5)
        shifts.append(shift)
        assert (other["pooled_shift"] > 1e-6) == (of == "encoder")
    assert max(map(abs, shifts)) > 1e-3


async def test_a_text_alone_is_as_in_company(served: httpx.AsyncClient) -> None:
    together = await results_of(served, **BODY)
    for text, target, found in zip(TEXTS, TARGETS, together, strict=True):
        (alone,) = await results_of(served, inputs=text, targets=target, maps=ALL)
        close(alone["cross_attention"], np.array(found["cross_attention"]), 1e-6)


async def test_vectors_are_the_encoders(
    served: httpx.AsyncClient, translator: tuple[Path, Artifact]
) -> None:
    reply = (await served.post("/encode", json={"inputs": TEXTS})).json()
    for result in reply["results"]:
        ids = np.array(result["token_ids"])
        wanted = transformers_says(translator[0], ids, np.array([2])).encoded[-1]
        close(result["embeddings"], wanted, 1e-4 * max(1, np.abs(wanted).max()))
