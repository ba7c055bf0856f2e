"""Rounding errors of maps in float32: ONNX Runtime against PyTorch, and each against float64.

Rotary angles stay float32 in the float64 run: they belong to the model, not to the arithmetic.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness.alone import random_batch
from model.artifact.manifest import load_artifact
from model.encoder.encoder import Encoder
from model.numerics.batch import Batch
from model.packing import PackedBatch
from model.runtimes.capabilities import HeadMaps, capability
from model.runtimes.onnx import OnnxRuntime
from model.runtimes.pytorch import load_modules

TOKENS = 128


@dataclass(frozen=True)
class Rounding:
    """Largest difference of any attention weight, layer by layer."""

    to_each_other: list[float]
    onnx_to_float64: list[float]
    torch_to_float64: list[float]


def measure(folder: Path) -> Rounding:
    """Compare the maps of a text of random tokens, each side from its own hidden states."""
    artifact = load_artifact(folder)
    runtime, encoder = OnnxRuntime(artifact), load_modules(artifact).encoder
    config = encoder.config
    batch = random_batch(min(TOKENS, config.max_position_embeddings), config.vocab_size)
    layers, heads = range(config.num_hidden_layers), range(config.num_attention_heads)
    states = runtime.hidden_states(batch, layers)
    onnx = [capability(runtime, HeadMaps).attention(states[i], states[i], i, heads) for i in layers]
    single, double = maps_of(encoder, batch), maps_of(copy.deepcopy(encoder).double(), batch)
    return Rounding(
        to_each_other=differences(onnx, single),
        onnx_to_float64=differences(onnx, double),
        torch_to_float64=differences(single, double),
    )


def maps_of(encoder: Encoder, batch: Batch) -> list[np.ndarray]:
    """Return the maps of one text, `[N, S, S]` for each layer."""
    with torch.inference_mode():
        output = encoder(PackedBatch.of(batch), output_attentions=True)
    return [maps[0].numpy() for maps in output.attentions]


def differences(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> list[float]:
    """Return the largest absolute difference of each pair."""
    pairs = zip(found, expected, strict=True)
    return [float(np.abs(one.astype(np.float64) - other).max()) for one, other in pairs]
