"""Maps and statistics of every head over HTTP, on the default checkpoint, against transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import pytest

from tests.journeys.reference import (
    HEADS,
    LAYERS,
    MAX_TOKENS,
    SEPARATOR,
    Head,
    Reference,
    close,
    post,
)
from tests.journeys.texts import Text
from tests.service import plain

pytestmark = pytest.mark.e2e

SINGLE: list[Text] = [
    "The animal didn't cross the street because it was too tired",
    "A literal [SEP] in the text, and [CLS] [MASK] [PAD] [UNK] too",
    "",
    "a",
    "注意力机制的核心思想是允许模型对不同位置赋予不同的权重",
    " ".join(["attention"] * 120 + ["is", "all", "you", "need"] * 20 + ["attention"] * 54),
]
"""Texts of 2 to 256 tokens."""
PAIRS: list[Text] = [
    ("The animal didn't cross the street", "it was too tired"),
    ("one [SEP] two", "three [SEP] four"),
    ("", "an empty first segment"),
    ("", ""),
]
ABLATIONS: list[list[Head]] = [
    [(0, 0)],
    [(5, 11)],
    [(2, 7), (2, 3), (4, 0)],
    [(3, head) for head in range(HEADS)],
    [(layer, head) for layer in range(LAYERS) for head in range(HEADS)],
]


@pytest.fixture(scope="module")
def reference(reference: Reference) -> Reference:
    ids, separators = (reference.run(text).tokens["token_ids"] for text in (SINGLE[-1], PAIRS[1]))
    assert (len(ids), separators.count(SEPARATOR)) == (MAX_TOKENS, 4)
    return reference


def ablate(heads: Sequence[Head]) -> list[dict[str, int]]:
    return [{"layer": layer, "head": head} for layer, head in heads]


def ask(client: httpx.Client, inputs: Sequence[Text], **body: Any) -> dict[str, Any]:
    return post(client, "/attention", inputs=inputs, **body)


def assert_statistics(
    found: dict[str, Any],
    index: int,
    wanted: dict[str, Any],
    layers: Sequence[int] = range(LAYERS),
    heads: Sequence[int] = range(HEADS),
) -> None:
    for name, values in wanted.items():
        # a distance is a sum of weights times up to 255 tokens
        atol = 2e-4 if name == "distance" else 1e-5
        close(found[f"stats.{index}.{name}"], values[np.ix_(layers, heads)], atol)


@pytest.mark.parametrize("inputs", [SINGLE, PAIRS], ids=["texts", "pairs"])
@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_everything_of_every_head(client, reference, backend, inputs):
    found = ask(client, inputs, include=["weights", "stats", "rollout"], backend=backend)
    for index, text in enumerate(inputs):
        maps = reference.run(text).maps
        close(found[f"attention.{index}"], maps)
        assert_statistics(found, index, reference.run(text).statistics)
        close(found[f"rollout.{index}"], plain.rollout(maps))


@pytest.mark.parametrize(
    ("layers", "heads"),
    [([5, 0], [3, 11, 0]), ([2], [7]), ([-1, 1, -4], [-12, 5]), (None, [4]), ([3, 0, 5, 1], None)],
)
def test_some_layers_and_heads_in_the_order_asked(client, reference, layers, heads):
    asked = {"layers": layers, "heads": heads}
    found = ask(client, SINGLE[:-1], include=["weights", "stats", "rollout"], **asked)
    rows = [n % LAYERS for n in layers or range(LAYERS)]
    columns = [n % HEADS for n in heads or range(HEADS)]
    for index, text in enumerate(SINGLE[:-1]):
        whole = reference.run(text).maps
        close(found[f"attention.{index}"], whole[rows][:, columns])
        assert_statistics(found, index, reference.run(text).statistics, rows, columns)
        close(found[f"rollout.{index}"], plain.rollout(whole))  # of all layers and heads


def test_rollout_alone(client, reference):
    for asked in ({}, {"layers": [1]}, {"heads": [2]}, {"layers": [1], "heads": [2]}):
        found = ask(client, PAIRS, include=["rollout"], **asked)
        assert not any(name.startswith(("attention", "stats")) for name in found)
        for index, text in enumerate(PAIRS):
            close(found[f"rollout.{index}"], plain.rollout(reference.run(text).maps))


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_norms_of_what_heads_add(client, reference, backend):
    asked = {"include": ["weights", "norms", "norm_rollout"], "backend": backend}
    found = ask(client, SINGLE, **asked)
    some = {"include": ["norms"], "layers": [5, 1], "heads": [3, 0], "backend": backend}
    reply = client.post("/attention", json={"inputs": SINGLE[:4], **some}).json()
    for index, text in enumerate(SINGLE):
        maps, products = reference.run(text).maps, reference.value_products(text)
        wanted = plain.norms(maps, products)
        rows = wanted.max(axis=-1, keepdims=True)
        np.testing.assert_allclose(
            found[f"norms.{index}"] / rows, wanted / rows, rtol=1e-4, atol=1e-5
        )
        large = wanted > 1e-3 * rows
        np.testing.assert_allclose(found[f"norms.{index}"][large], wanted[large], rtol=1e-4)
        close(found[f"norm_rollout.{index}"], plain.norm_rollout(maps, products))
        if index < 4:
            result = reply["results"][index]
            assert "attention" not in result
            chosen = np.array(result["norms"], np.float32)
            np.testing.assert_allclose(
                chosen, found[f"norms.{index}"][[5, 1]][:, [3, 0]], rtol=1e-5
            )


@pytest.mark.parametrize("top_k", [1, 3, 40, 300])
def test_the_largest_weights(client, reference, top_k):
    found = ask(client, SINGLE, top_k=top_k, layers=[4, 1])
    for index, text in enumerate(SINGLE):
        maps = reference.run(text).maps[[4, 1]]
        indices, values = (found[f"attention.{index}.{name}"] for name in ("indices", "values"))
        size = min(top_k, maps.shape[-1])
        assert indices.shape == values.shape == (2, HEADS, maps.shape[-1], size)
        # where weights are equal up to rounding, either index may be first
        close(values, -np.sort(-maps, axis=-1)[..., :size])
        close(np.take_along_axis(maps, indices, axis=-1), values)
        assert all(len(set(row)) == size for row in indices.reshape(-1, size).tolist())


@pytest.mark.parametrize("heads", ABLATIONS, ids=lambda heads: f"{len(heads)} heads")
@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_ablated_heads_say_nothing(client, reference, backend, heads):
    """The longest text, which costs more than all others, is used for only one choice of heads."""
    texts = SINGLE if heads is ABLATIONS[2] else SINGLE[:-1]
    found = ask(client, texts, ablate=ablate(heads), backend=backend)
    for index, text in enumerate(texts):
        maps = reference.run(text, heads).maps
        close(found[f"attention.{index}"], maps)
        apart = np.abs(maps - reference.run(text).maps).max(axis=(1, 2, 3))
        first = min(layer for layer, _ in heads)
        assert (apart[: first + 1] == 0).all()  # an ablated head's own maps stay
        assert (apart[first + 1 :] > 1e-3).all()
        shift = reference.shift(text, heads)
        assert shift > 1e-6
        assert found["pooled_shift"][index] == pytest.approx(shift, abs=1e-5)


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_ablation_with_statistics_and_rollout_of_pairs(client, reference, backend):
    heads = ABLATIONS[2]
    asked = {"layers": [5, 3], "heads": [1, 0, 7], "backend": backend}
    found = ask(client, PAIRS, include=["stats", "rollout"], ablate=ablate(heads), **asked)
    assert not any(name.startswith("attention") for name in found)
    for index, text in enumerate(PAIRS):
        maps = reference.run(text, heads).maps
        assert_statistics(found, index, reference.run(text, heads).statistics, [5, 3], [1, 0, 7])
        close(found[f"rollout.{index}"], plain.rollout(maps))
        shift = reference.shift(text, heads)
        assert found["pooled_shift"][index] == pytest.approx(shift, abs=1e-5)


def test_ablation_with_the_largest_weights_as_json(client, reference):
    body = {"inputs": SINGLE[0], "top_k": 2, "ablate": ablate([(0, 3)]), "layers": [-1]}
    (result,) = client.post("/attention", json=body).json()["results"]
    maps = reference.run(SINGLE[0], [(0, 3)]).maps[[5]]
    close(result["attention"]["values"], -np.sort(-maps, axis=-1)[..., :2])
    assert result["pooled_shift"] == pytest.approx(reference.shift(SINGLE[0], [(0, 3)]), abs=1e-6)
