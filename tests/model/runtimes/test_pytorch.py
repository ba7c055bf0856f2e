"""PyTorch as a runtime; `test_registry` tests what all runtimes share."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from model.artifact.manifest import Artifact, RuntimeName
from model.artifact.signature import MapKind
from model.checkpoint import load_checkpoint
from model.encoder.encoder import Encoder
from model.errors import ArtifactError
from model.export.serving import serving_copy
from model.export.verify import verify
from model.numerics.batch import pack
from model.packing import PackedBatch
from model.runtimes.capabilities import Decoder, HeadMaps, capability
from model.runtimes.pytorch import PyTorchRuntime, with_merged_layers
from model.runtimes.registry import load_runtime
from tests.model.families.parity import texts_of
from tests.model.jina_v3 import Reference, write_published
from tests.model.runtimes.test_onnx import LENGTHS, batch_of


def test_without_weights_it_is_one_line(tiny_artifact: Artifact, tmp_path: Path) -> None:
    artifact = serving_copy(tiny_artifact, tmp_path / "serving")
    with pytest.raises(ArtifactError, match=r"--serving-only, without .* PyTorch") as caught:
        load_runtime(artifact, name="pytorch")
    assert "\n" not in str(caught.value)
    with pytest.raises(ArtifactError, match=r"--serving-only, without .* PyTorch"):
        verify(artifact)
    load_runtime(artifact)  # the graphs need none of it


def test_what_no_request_changes_is_computed_at_the_start(
    tiny_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Projections of relative positions, tables of distances, and parameters by head."""
    runtime, states = load_runtime(tiny_artifact, name="pytorch"), np.ones((2, 12), np.float32)
    monkeypatch.delattr(Encoder, "head_parameters")
    monkeypatch.delattr("model.attention.self_attention.bucket_table")
    found = capability(runtime, HeadMaps).attention(states, states, 1, [2, 0])
    assert found.shape == (2, 2, 2)


def test_a_head_mask_ablates_in_its_own_text(tiny_artifact: Artifact) -> None:
    runtime, batch = load_runtime(tiny_artifact, name="pytorch"), batch_of(LENGTHS)
    assert isinstance(runtime, PyTorchRuntime)
    mask = np.ones((len(LENGTHS), 2, 3), np.float32)
    mask[0, 1, 2] = 0
    (plain,) = runtime.hidden_states(batch, [2])
    (ablated,) = runtime.hidden_states(batch, [2], mask)
    first = LENGTHS[0]
    assert np.abs(plain[:first] - ablated[:first]).max() > 1e-3
    np.testing.assert_array_equal(plain[first:], ablated[first:])


@pytest.mark.parametrize("kind", ["decoder", "cross"])
def test_some_heads_are_those_of_all(bart_artifact: Artifact, kind: MapKind) -> None:
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((5, 24), np.float32)
    keys = rng.standard_normal((7, 24), np.float32) if kind == "cross" else queries
    names: tuple[RuntimeName, ...] = ("pytorch", "onnx")
    decoders = [capability(load_runtime(bart_artifact, name=name), Decoder) for name in names]
    for layer in (0, 1):
        every = decoders[1].attention_of(kind, queries, keys, layer, [0, 1, 2])
        for decoder in decoders:
            some = decoder.attention_of(kind, queries, keys, layer, [2, 0])
            np.testing.assert_allclose(some, every[[2, 0]], atol=1e-6)


def test_merged_layers_equal_those_with_an_adapter(tmp_path: Path) -> None:
    encoder = load_checkpoint(write_published(Reference(), tmp_path))
    merged = with_merged_layers(encoder, 2)
    assert merged.config.adapters is None
    (text,) = texts_of(encoder, (1, 1, 17))[2:]
    batch = PackedBatch.of(pack([(text, [2] * len(text))]))
    with torch.no_grad():
        states = encoder(batch).hidden_states
        for number, (entering, leaving) in enumerate(itertools.pairwise(states)):
            found = merged.layer(number)(entering, batch, None, {})
            torch.testing.assert_close(found, leaving, atol=1e-5, rtol=1e-5)
