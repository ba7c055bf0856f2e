"""Checkpoints with large scores: float32's own rounding is allowed, a fault is not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file

from model.artifact.manifest import DECODER_HEADS, Artifact
from model.artifact.mapped import mapped_tensors
from model.artifact.recorded import recorded_tolerances
from model.artifact.vectors import TextVectors
from model.export.rounding import load_references, reference_tensors, with_rounding
from model.export.verify import verify
from model.numerics.batch import pack
from model.numerics.comparison import Kind, Tolerance, tolerances_of
from tests.model.checkpoints import edit_weights

MAPS: tuple[Kind, ...] = ("attention", "decoder_attention", "cross_attention")
LARGE = 10.0
"""Factor of the tiny BART's scores, which then reach some hundreds."""


@pytest.fixture(scope="module")
def large_scores(
    exported: Callable[..., Artifact],
    encoder_decoders: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Artifact:
    """Return the tiny BART with queries as large as T5's, which are not divided by √p."""
    folder = tmp_path_factory.mktemp("large") / "bart"
    shutil.copytree(encoder_decoders("bart"), folder)
    weights = load_file(folder / "model.safetensors")
    queries = {name: each * LARGE for name, each in weights.items() if "q_proj.weight" in name}
    edit_weights(folder, **queries)
    return exported(folder, "large-scores")


def test_rounding_of_float32_is_allowed_for_and_recorded(large_scores: Artifact) -> None:
    record = large_scores.manifest.verification
    assert record.passed, record.failed
    usual = tolerances_of("fp32", *large_scores.manifest.depths)
    wider = {kind for kind in MAPS if record.tolerances[kind]["atol"] > usual[kind].atol}
    assert wider
    for kind in MAPS:
        assert record.tolerances[kind]["atol"] <= 100 * usual[kind].atol
    assert record.tolerances["pooled"]["atol"] == usual["pooled"].atol
    for kind, tolerance in recorded_tolerances(large_scores.manifest).items():
        if kind in record.tolerances:
            assert Tolerance(**record.tolerances[kind]) == tolerance


def test_a_wrong_weight_is_found_all_the_same(large_scores: Artifact, tmp_path: Path) -> None:
    folder = shutil.copytree(large_scores.folder, tmp_path / "wrong")
    heads = {name: each.copy() for name, each in mapped_tensors(folder / DECODER_HEADS).items()}
    heads["cross.query_weight.1"][2] *= 1.01  # one head
    save_file(heads, folder / DECODER_HEADS)
    found = verify(Artifact(folder, large_scores.manifest, large_scores.sha256))
    assert found.failed is not None
    assert "first cross-attention of layer 1, head 2" in found.failed


def test_bounds_are_four_times_the_distance_from_float64(bart_artifact: Artifact) -> None:
    modules, vectors = load_references(bart_artifact), TextVectors.of(bart_artifact)
    batch = pack([([5, 6, 7], [0, 0, 0])])
    tight = {kind: Tolerance(1e-12, 0.0, 0.9) for kind in tolerances_of("fp32", 1, 2)}
    assert with_rounding(modules, [batch], vectors, tight)["hidden"].atol == pytest.approx(1e-10)
    room = {kind: Tolerance(1e-7, 0.0, 0.9) for kind in tight}
    (single,) = reference_tensors(modules, batch, vectors)
    modules.encoder.double()
    assert modules.decoder is not None
    modules.decoder.double()
    (double,) = reference_tensors(modules, batch, vectors)
    modules.encoder.float()
    modules.decoder.float()
    off = max(abs(single[key] - double[key]).max() for key in double if key.kind == "hidden")
    assert 0 < off < 1e-5
    atol = with_rounding(modules, [batch], vectors, room)["hidden"].atol
    assert 4 * off <= atol <= 8 * off
    with torch.no_grad():
        modules.encoder.embeddings.word.weight[5] = float("inf")
    broken = with_rounding(modules, [batch], vectors, room)
    assert broken["hidden"].atol in (1e-7, atol)
