"""Half precision: a real model keeps its quality."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from tokenizers import Tokenizer

from model.artifact.batch import pack
from model.artifact.compare import TOLERANCES, Key, difference, keyed
from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.pooling import TextPooling
from model.checkpoint import load_checkpoint
from model.encoder import EncoderOutput
from model.packing import PackedBatch
from model.runtimes.registry import load_runtime
from tests.model.runtimes.test_onnx import rows_of


@pytest.mark.slow
def test_the_tolerances_hold_where_every_step_is_rounded(minilm_checkpoint: Path) -> None:
    """A CPU computes half-precision graphs in part in float32; PyTorch here rounds every tensor."""
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
    return keyed(hidden, np.stack(maps), "mean")


@pytest.fixture(scope="module")
def minilm(exported: Callable[..., Artifact], minilm_checkpoint: Path) -> dict[str, Artifact]:
    return {name: exported(minilm_checkpoint, "minilm", name) for name in ("fp32", "fp16")}


@pytest.mark.slow
def test_a_real_model_passes_with_room_to_spare(minilm: dict[str, Artifact]) -> None:
    record = minilm["fp16"].manifest.verification
    assert record.passed
    assert record.min_cosine == {"hidden": 1.0, "attention": 1.0, "pooled": 1.0}
    assert record.max_abs_diff_below["pooled"] <= 1e-3


def vectors_of(artifact: Artifact, texts: list[str]) -> np.ndarray:
    """Unit vectors, as a service asks for them: 64 texts of like length at a time."""
    tokenizer = Tokenizer.from_file(str(artifact.path(TOKENIZER)))
    tokenizer.enable_truncation(256)
    encodings = tokenizer.encode_batch(texts)
    order = sorted(range(len(texts)), key=lambda i: len(encodings[i].ids))
    runtime = load_runtime(artifact)
    vectors = np.empty((len(texts), 384), np.float32)
    for start in range(0, len(order), 64):
        chosen = order[start : start + 64]
        batch = pack([(encodings[i].ids, encodings[i].type_ids) for i in chosen])
        asked = [TextPooling(row, 6, "mean", 0, 384) for row in range(len(chosen))]
        _, vectors[chosen] = runtime.encode(batch, [], asked)
    return vectors


@pytest.mark.slow
def test_sts_benchmark_within_a_tenth_of_a_point(
    minilm: dict[str, Artifact], shared_data: Path
) -> None:
    with (shared_data / "stsb-en-dev.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 1500
    spearman = {}
    for name, artifact in minilm.items():
        texts = [row[column] for column in (0, 1) for row in rows]
        first, second = np.split(vectors_of(artifact, texts), 2)
        cosine = (first * second).sum(axis=1)
        spearman[name] = 100 * spearmanr(cosine, [float(row[2]) for row in rows]).statistic
    assert spearman["fp32"] == pytest.approx(86.716, abs=0.02)
    assert spearman["fp16"] == pytest.approx(spearman["fp32"], abs=0.1)
