"""Maps and statistics of every head over HTTP, on the default checkpoint, against transformers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load

from tests.journeys.texts import Text
from tests.service import plain

pytestmark = pytest.mark.e2e

LAYERS, HEADS, HEAD_SIZE = 6, 12, 32
SEPARATOR = 102
BINARY = {"accept": "application/vnd.safetensors"}
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
Head = tuple[int, int]
ABLATIONS: list[list[Head]] = [
    [(0, 0)],
    [(5, 11)],
    [(2, 7), (2, 3), (4, 0)],
    [(3, head) for head in range(HEADS)],
    [(layer, head) for layer in range(LAYERS) for head in range(HEADS)],
]


@contextlib.contextmanager
def without(model: Any, heads: Sequence[Head]) -> Iterator[None]:
    """Set the outputs of some heads to zero before the output projection."""

    def hook_for(ablated: list[int]) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> Any:
            context, *rest = output
            split = context.reshape(*context.shape[:2], HEADS, HEAD_SIZE).clone()
            split[:, :, ablated] = 0
            return (split.reshape(context.shape), *rest)

        return hook

    handles = []
    for layer, module in enumerate(model.encoder.layer):
        if ablated := [head for of_layer, head in heads if of_layer == layer]:
            handles.append(module.attention.self.register_forward_hook(hook_for(ablated)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Reference:
    """Maps and pooled vectors of transformers, and values derived from maps, computed once each."""

    def __init__(self, tokenizer: Any, model: Any) -> None:
        self._tokenizer, self._model = tokenizer, model
        self._known: dict[Any, tuple[Any, Any]] = {}
        self._statistics: dict[Any, dict[str, Any]] = {}

    def ids(self, text: Text) -> list[int]:
        encoding = self._tokenizer([text if isinstance(text, str) else list(text)])
        found: list[int] = encoding["input_ids"][0]
        return found

    def separators(self, text: Text) -> list[int]:
        return [place for place, token in enumerate(self.ids(text)) if token == SEPARATOR]

    def run(self, text: Text, heads: Sequence[Head] = ()) -> tuple[Any, Any]:
        """Return maps `[L, N, S, S]` and the mean of the last hidden state."""
        key = (text, tuple(heads))
        if key not in self._known:
            batch = [text if isinstance(text, str) else list(text)]
            inputs = self._tokenizer(batch, return_tensors="pt")
            with torch.no_grad(), without(self._model, heads):
                output = self._model(**inputs, output_attentions=True)
            maps = torch.stack(output.attentions)[:, 0].numpy()
            self._known[key] = maps, output.last_hidden_state[0].mean(dim=0).numpy()
        return self._known[key]

    def statistics(self, text: Text, heads: Sequence[Head] = ()) -> dict[str, Any]:
        """Return the statistics `[L, N]` by name, from the definitions."""
        key = (text, tuple(heads))
        if key not in self._statistics:
            maps, _ = self.run(text, heads)
            self._statistics[key] = plain.statistics(maps, self.separators(text))
        return self._statistics[key]

    def value_products(self, text: Text) -> Any:
        """Return ⟨f_g(x_k), f_h(x_k)⟩ `[L, S, N, N]`, by the model's own projections."""
        values: list[Any] = []
        handles = [
            layer.attention.self.value.register_forward_hook(lambda _, __, out: values.append(out))
            for layer in self._model.encoder.layer
        ]
        inputs = self._tokenizer(
            [text if isinstance(text, str) else list(text)], return_tensors="pt"
        )
        with torch.no_grad():
            self._model(**inputs)
        for handle in handles:
            handle.remove()
        found = []
        for value, layer in zip(values, self._model.encoder.layer, strict=True):
            split = value[0].double().reshape(-1, HEADS, HEAD_SIZE)
            output = layer.attention.output.dense.weight.detach().double()
            added = torch.einsum("snp,onp->sno", split, output.reshape(-1, HEADS, HEAD_SIZE))
            found.append((added @ added.transpose(1, 2)).numpy())
        return np.stack(found)

    def shift(self, text: Text, heads: Sequence[Head]) -> float:
        return plain.turned(self.run(text, heads)[1], self.run(text)[1])


@pytest.fixture(scope="module")
def reference(transformers_reference: Any) -> Reference:
    found = Reference(*transformers_reference)
    assert [len(found.ids(text)) for text in (SINGLE[2], SINGLE[-1])] == [2, 256]
    assert len(found.separators(PAIRS[1])) == 4
    return found


def ablate(heads: Sequence[Head]) -> list[dict[str, int]]:
    return [{"layer": layer, "head": head} for layer, head in heads]


def ask(client: httpx.Client, inputs: Sequence[Text], **body: Any) -> dict[str, Any]:
    """Return a binary reply's tensors."""
    reply = client.post("/attention", json={"inputs": inputs, **body}, headers=BINARY)
    assert reply.status_code == 200, reply.text
    return load(reply.content)


def close(found: Any, wanted: Any, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)


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
        maps, _ = reference.run(text)
        close(found[f"attention.{index}"], maps)
        assert_statistics(found, index, reference.statistics(text))
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
        whole, _ = reference.run(text)
        close(found[f"attention.{index}"], whole[rows][:, columns])
        assert_statistics(found, index, reference.statistics(text), rows, columns)
        close(found[f"rollout.{index}"], plain.rollout(whole))  # of all layers and heads


def test_rollout_alone(client, reference):
    for asked in ({}, {"layers": [1]}, {"heads": [2]}, {"layers": [1], "heads": [2]}):
        found = ask(client, PAIRS, include=["rollout"], **asked)
        assert not any(name.startswith(("attention", "stats")) for name in found)
        for index, text in enumerate(PAIRS):
            close(found[f"rollout.{index}"], plain.rollout(reference.run(text)[0]))


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_norms_of_what_heads_add(client, reference, backend):
    asked = {"include": ["weights", "norms", "norm_rollout"], "backend": backend}
    found = ask(client, SINGLE, **asked)
    some = {"include": ["norms"], "layers": [5, 1], "heads": [3, 0], "backend": backend}
    reply = client.post("/attention", json={"inputs": SINGLE[:4], **some}).json()
    for index, text in enumerate(SINGLE):
        maps, products = reference.run(text)[0], reference.value_products(text)
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
        maps = reference.run(text)[0][[4, 1]]
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
        maps, _ = reference.run(text, heads)
        close(found[f"attention.{index}"], maps)
        apart = np.abs(maps - reference.run(text)[0]).max(axis=(1, 2, 3))
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
        maps, _ = reference.run(text, heads)
        assert_statistics(found, index, reference.statistics(text, heads), [5, 3], [1, 0, 7])
        close(found[f"rollout.{index}"], plain.rollout(maps))
        shift = reference.shift(text, heads)
        assert found["pooled_shift"][index] == pytest.approx(shift, abs=1e-5)


def test_ablation_with_the_largest_weights_as_json(client, reference):
    body = {"inputs": SINGLE[0], "top_k": 2, "ablate": ablate([(0, 3)]), "layers": [-1]}
    (result,) = client.post("/attention", json=body).json()["results"]
    maps = reference.run(SINGLE[0], [(0, 3)])[0][[5]]
    close(result["attention"]["values"], -np.sort(-maps, axis=-1)[..., :2])
    assert result["pooled_shift"] == pytest.approx(reference.shift(SINGLE[0], [(0, 3)]), abs=1e-6)
