"""Splitting, pooling and value products in host memory, by weights that are loaded on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from model.artifact.manifest import Artifact
from model.families.registry import parse_config
from model.numerics.batch import Batch, pack
from model.numerics.pooling import TextPooling
from model.runtimes.capabilities import Decoder, capability
from model.runtimes.contract import LONE_TOKENS, Calls, Floats, Heads, HostRuntime, Runtime
from model.runtimes.host_graphs import HeadGraphs
from model.runtimes.registry import load_runtime
from tests.model.checkpoints import TINY

LENGTHS = [4, 1, 6]
STATES = np.random.default_rng(0).standard_normal((3, sum(LENGTHS), 12), np.float32)
"""Hidden states `[L + 1, T, H]`."""
FIRST, SECOND, THIRD = slice(0, 4), slice(4, 5), slice(5, 11)


class KnownStates(HostRuntime):
    """Runtime that returns `STATES`, and records its requests."""

    config = parse_config(TINY | {"model_type": "bert"})

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[int], Floats | None]] = []

    def hidden_states(
        self, batch: Batch, layers: Sequence[int], head_mask: Floats | None = None
    ) -> list[Floats]:
        self.asked.append((len(batch.input_ids), list(layers), head_mask))
        return [STATES[layer] for layer in layers]


@pytest.fixture
def known() -> KnownStates:
    return KnownStates()


def batch_of(*lengths: int) -> Batch:
    return pack([([1] * n, [0] * n) for n in lengths])


def test_hidden_states_are_cut_in_the_order_asked(known: KnownStates) -> None:
    hidden = [(2, 0), (0, 2), (2, 2), (1, 0), (2, 0)]
    found, vectors = known.encode(batch_of(*LENGTHS), hidden, [])
    expected = [STATES[0, THIRD], STATES[2, FIRST], STATES[2, THIRD]]
    expected += [STATES[0, SECOND], STATES[0, THIRD]]
    assert vectors == []
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)
        assert np.shares_memory(ours, STATES)
    assert known.asked == [(sum(LENGTHS), [0, 2], None)]


def test_each_text_is_pooled_over_its_own_tokens(known: KnownStates) -> None:
    poolings = [
        TextPooling(2, 1, "mean", first_token=2),
        TextPooling(0, 2, "max"),
        TextPooling(1, 0, "last"),
        TextPooling(2, 2, "cls", first_token=5),
        TextPooling(2, 1, "weightedmean", first_token=4),
        TextPooling(0, 1, ("last", "max")),
    ]
    expected = [
        STATES[1, 7:11].mean(axis=0),
        STATES[2, 0:4].max(axis=0),
        STATES[0, 4],
        STATES[2, 10],
        (5 * STATES[1, 9] + 6 * STATES[1, 10]) / 11,
        np.concatenate([STATES[1, 3], STATES[1, FIRST].max(axis=0)]),
    ]
    hidden, found = known.encode(batch_of(*LENGTHS), [], poolings)
    assert hidden == []
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, strict=True)
        assert not np.shares_memory(ours, STATES)


@pytest.mark.parametrize("features", [1, 5, 12])
def test_leading_features_become_a_unit_vector(known: KnownStates, features: int) -> None:
    asked = TextPooling(0, 2, "mean", unit_features=features)
    _, (vector,) = known.encode(batch_of(*LENGTHS), [], [asked])
    mean = STATES[2, FIRST].mean(axis=0)[:features].astype(np.float64)
    np.testing.assert_allclose(vector[:features], mean / np.linalg.norm(mean), rtol=1e-5)
    assert vector.shape == (12,)


def test_a_head_mask_reaches_the_encoder(known: KnownStates) -> None:
    mask = np.zeros((3, 2, 3), np.float32)
    known.encode(batch_of(*LENGTHS), [(0, 1)], [TextPooling(0, 2, "cls")], mask)
    ((_, layers, given),) = known.asked
    assert layers == [1, 2]
    assert given is mask


def test_a_warm_up_is_one_short_batch(known: KnownStates) -> None:
    known.warm_up(4096, 512)
    assert known.asked == [(1, [2], None)]


def test_a_short_batch_is_alone_until_another_call_begins() -> None:
    calls = Calls()
    with calls.call(batch_of(LONE_TOKENS)) as first:
        with calls.call(batch_of(1)) as second:
            pass
        with calls.call(batch_of(1)) as third:
            pass
    assert (first, second, third) == (True, False, False)
    with pytest.raises(RuntimeError), calls.call(batch_of(1, 1)) as failed:
        raise RuntimeError
    with calls.call(batch_of(LONE_TOKENS, 1)) as long:
        pass
    with calls.call(batch_of(1)) as last:
        pass
    assert (failed, long, last) == (True, False, True)


ROWS: Floats = np.random.default_rng(0).standard_normal((9, 12), np.float32)
N, P, H = 3, 4, 12


def projected(artifact: Artifact, role: str, layer: int) -> NDArray[np.float64]:
    """Return a BERT's queries or keys `[N, S, P]` in float64, by the artifact's float32 weights."""
    stored = load_file(artifact.path("weights.safetensors"))
    prefix = f"layers.{layer}.attention.{role}"
    rows = ROWS.astype(np.float64) @ stored[f"{prefix}.weight"].T + stored[f"{prefix}.bias"]
    return rows.reshape(len(ROWS), N, P).transpose(1, 0, 2)


def test_scores_of_the_heads_asked_for(runtime: Runtime, tiny_artifact: Artifact) -> None:
    for layer in (0, 1):
        queries, keys = (projected(tiny_artifact, role, layer) for role in ("query", "key"))
        scores = queries @ keys.transpose(0, 2, 1) / P**0.5
        for heads in ([0, 1, 2], [2, 0], [1]):
            found = capability(runtime, Heads).head_scores(ROWS, layer, heads)
            for name, wanted in (("queries", queries), ("keys", keys), ("scores", scores)):
                np.testing.assert_allclose(getattr(found, name), wanted[heads], atol=1e-5)


def expected(artifact: Artifact, layer: int, heads: list[int]) -> Any:
    """Compute them in float64, from the artifact's float32 weights."""
    stored = load_file(artifact.path("weights.safetensors"))
    prefix = f"layers.{layer}.attention."
    values = ROWS.astype(np.float64) @ stored[f"{prefix}value.weight"].T
    values = (values + stored[f"{prefix}value.bias"]).reshape(len(ROWS), N, P)
    output = stored[f"{prefix}output.weight"].reshape(H, N, P).astype(np.float64)
    added = np.einsum("snp,hnp->snh", values, output)[:, heads]
    return np.einsum("sgh,sfh->sgf", added, added)


@pytest.mark.parametrize("heads", [[0, 1, 2], [2, 0], [1]])
def test_products_are_of_the_heads_asked_for(
    runtime: Runtime, heads: list[int], tiny_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = capability(runtime, Heads)
    for layer in (0, 1):
        wanted = expected(tiny_artifact, layer, heads)
        whole = outputs.value_products(ROWS, layer, heads)
        np.testing.assert_allclose(whole, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
        for floats in (1, 2 * len(heads) * H, 8 * len(heads) * H):
            monkeypatch.setattr("model.runtimes.contract.FLOATS", floats)
            parts = outputs.value_products(ROWS, layer, heads)
            np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())
        monkeypatch.undo()


@pytest.mark.parametrize("name", ["onnx", "pytorch"])
@pytest.mark.parametrize(("kind", "module"), [("decoder", "self_attn"), ("cross", "encoder_attn")])
def test_products_of_a_decoders_heads(
    name: Any,
    kind: Any,
    module: str,
    bart_artifact: Artifact,
    encoder_decoders: Callable[[str], Path],
) -> None:
    """In float64, by the checkpoint's own tensors; three heads of 8 features."""
    stored = load_file(encoder_decoders("bart") / "model.safetensors")
    states = np.random.default_rng(1).standard_normal((7, 24), np.float32)
    decoder = capability(load_runtime(bart_artifact, name=name), Decoder)
    for layer in (1, 0):
        prefix = f"model.decoder.layers.{layer}.{module}."
        values = states.astype(np.float64) @ stored[f"{prefix}v_proj.weight"].T
        values = (values + stored[f"{prefix}v_proj.bias"]).reshape(7, 3, 8)
        output = stored[f"{prefix}out_proj.weight"].reshape(24, 3, 8).astype(np.float64)
        for heads in ([0, 1, 2], [2, 0]):
            added = np.einsum("snp,hnp->snh", values, output)[:, heads]
            wanted = np.einsum("sgh,sfh->sgf", added, added)
            found = decoder.heads[kind].value_products(states, layer, heads)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("heads", [[0, 1, 2], [1], [2, 0], range(3), (1, 2)], ids=str)
def test_rows_of_a_projection_belong_to_consecutive_heads(
    tiny_artifact: Artifact, tiny_checkpoint: Path, layer: int, heads: list[int]
) -> None:
    stored = load_file(tiny_checkpoint / "model.safetensors")
    names = [f"{role}_{kind}" for role in ("query", "key") for kind in ("weight", "bias")]
    fed = HeadGraphs(tiny_artifact).parameters(names, layer, heads)
    assert list(fed) == names
    for role in ("query", "key"):
        prefix = f"encoder.layer.{layer}.attention.self.{role}"
        for kind, shape in (("weight", (N, P, H)), ("bias", (N, P))):
            expected = stored[f"{prefix}.{kind}"].reshape(shape)[list(heads)]
            np.testing.assert_array_equal(fed[f"{role}_{kind}"], expected, strict=True)
