"""A serving-only artifact gives the same results as the whole one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from model.artifact.manifest import DECODER_WEIGHTS, FLOAT_WEIGHTS, WEIGHTS, Artifact, load_artifact
from model.artifact.mapped import mapped_tensors
from model.artifact.signature import DECODER_KINDS
from model.config.precision import Precision
from model.errors import ArtifactError
from model.export.serving import serving_copy
from model.runtimes.capabilities import Decoder, HeadMaps, HeadOutputs, capability
from model.runtimes.registry import load_runtime
from tests.model.runtimes.test_onnx import batch_of

LENGTHS = [5, 2]


def float_bytes(folder: Path) -> int:
    return sum((folder / name).stat().st_size for name in FLOAT_WEIGHTS if (folder / name).exists())


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_it_serves_the_same(
    exported: Callable[..., Artifact],
    small_checkpoint: Path,
    tmp_path: Path,
    precision: Precision,
) -> None:
    whole = exported(small_checkpoint, "small", precision)
    copy = serving_copy(whole, tmp_path / "serving")
    assert load_artifact(copy.folder).manifest == copy.manifest
    left = {"files", "serving_only"}
    assert copy.manifest.model_dump(exclude=left) == whole.manifest.model_dump(exclude=left)
    assert copy.manifest.serving_only
    batch = batch_of(LENGTHS)
    layers = range(copy.manifest.config.num_hidden_layers + 1)
    both = [load_runtime(each) for each in (whole, copy)]
    whole_states, states = (each.encode(batch, [(0, n) for n in layers], [])[0] for each in both)
    for one, other in zip(whole_states, states, strict=True):
        np.testing.assert_array_equal(one, other)
    maps, own = (
        capability(each, HeadMaps).attention(states[1], states[1], 1, [0, 1]) for each in both
    )
    np.testing.assert_array_equal(maps, own)
    products, own = (
        capability(each, HeadOutputs).value_products(states[1], 1, [1]) for each in both
    )
    np.testing.assert_array_equal(products, own)
    record = copy.manifest.files[WEIGHTS]
    assert record.serving_bytes == sum(each.nbytes for each in tensors_of(copy))
    assert record.serving_bytes == whole.manifest.files[WEIGHTS].serving_bytes
    assert precision != "int8" or float_bytes(copy.folder) < 0.95 * float_bytes(whole.folder)


def tensors_of(artifact: Artifact) -> list[np.ndarray]:
    return [*mapped_tensors(artifact.path(WEIGHTS)).values()]


def test_a_decoder_answers_too(bart_artifact: Artifact, tmp_path: Path) -> None:
    copy = serving_copy(bart_artifact, tmp_path / "serving")
    queries = np.random.default_rng(0).standard_normal((5, 24), np.float32)
    both = [capability(load_runtime(each), Decoder) for each in (bart_artifact, copy)]
    for kind in DECODER_KINDS:
        one, other = (each.attention_of(kind, queries, queries, 1, [0, 2]) for each in both)
        np.testing.assert_array_equal(one, other)
    rows, labels = np.ones((2, 24), np.float32), np.array([3, 7])
    one, other = (each.logprobs(rows, labels) for each in both)
    np.testing.assert_array_equal(one, other)
    assert copy.path(DECODER_WEIGHTS).stat().st_size > 0


def test_it_cannot_be_made_smaller_again(tiny_artifact: Artifact, tmp_path: Path) -> None:
    copy = serving_copy(tiny_artifact, tmp_path / "serving")
    with pytest.raises(ArtifactError, match="was already exported with --serving-only"):
        serving_copy(copy, tmp_path / "again")
