"""Half precision of a real model keeps its quality."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from model.artifact.manifest import Artifact
from model.checkpoint import load_checkpoint
from model.config.precision import Precision
from model.encoder.encoder import EncoderOutput
from model.numerics.batch import pack
from model.numerics.comparison import TOLERANCES, Key, difference, keyed
from model.numerics.pooling import l2_normalize, pool
from model.packing import PackedBatch
from tests import sts
from tests.model.runtimes.test_onnx import rows_of


@pytest.mark.slow
def test_the_tolerances_hold_where_every_step_is_rounded(minilm_checkpoint: Path) -> None:
    """A CPU computes half-precision graphs partly in float32; PyTorch here rounds every tensor."""
    encoder = load_checkpoint(minilm_checkpoint)
    half = load_checkpoint(minilm_checkpoint).half()
    ids = torch.randint(1000, 30000, (4, 128), generator=torch.Generator().manual_seed(0))
    batch = pack(
        [(row[:n].numpy(), np.zeros(n)) for row, n in zip(ids, (128, 64, 9, 2), strict=True)]
    )
    with torch.inference_mode():
        exact, found = (
            one(PackedBatch.of(batch), output_attentions=True) for one in (encoder, half)
        )
    for row, rows in enumerate(rows_of(batch)):
        expected, rounded = (tensors_of(output, row, rows) for output in (exact, found))
        for key, reference in expected.items():
            assert difference(reference, rounded[key], TOLERANCES["fp16"][key.kind]).passed, key


def tensors_of(output: EncoderOutput, text: int, rows: slice) -> dict[Key, np.ndarray]:
    hidden = [state[rows].float().numpy() for state in output.hidden_states]
    s = rows.stop - rows.start
    maps = [weights[text, :, :s, :s].float().numpy() for weights in output.attentions]
    return keyed(hidden, np.stack(maps), lambda state: l2_normalize(pool(state, "mean")))


@pytest.mark.slow
@pytest.mark.nightly
def test_a_real_model_passes_with_room_to_spare(minilm: Callable[[Precision], Artifact]) -> None:
    record = minilm("fp16").manifest.verification
    assert record.passed
    assert record.min_cosine == dict.fromkeys(("hidden", "attention", "values", "pooled"), 1.0)
    assert record.max_abs_diff_below["pooled"] <= 1e-3


@pytest.mark.slow
@pytest.mark.nightly
def test_vectors_of_sentences_hardly_change(
    sts_vectors: Callable[[Precision], np.ndarray], sts_pairs: list[sts.Pair]
) -> None:
    """The least cosine is 0.999999, and Spearman's correlation 0.001 more."""
    half, exact = sts_vectors("fp16"), sts_vectors("fp32")
    assert (half * exact).sum(axis=1).min() >= 0.99999
    assert sts.spearman(half, sts_pairs) == pytest.approx(sts.spearman(exact, sts_pairs), abs=0.02)
