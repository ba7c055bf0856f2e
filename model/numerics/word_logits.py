"""Logits of chosen words of the vocabulary for every token, by a sparse encoder's head.

The head's graph only gives their maximum or sum over tokens, for all words. numpy only.

Notation: S tokens of one text, H hidden size, E features of the transform, n words.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from model.numerics.task_head import TaskConfig, Transform
from model.numerics.vector_modules import ENCODER_ACTIVATIONS, Floats, standardized


def word_logits(
    tensors: Mapping[str, Floats], task: TaskConfig, rows: Floats, words: NDArray[np.int64]
) -> Floats:
    """Return logits `[S, n]`, in float32 for every precision of the artifact.

    Only the words' rows of the head's weights are read.
    """
    if task.transform is not None:
        rows = _transformed(rows, task.transform, tensors)
    logits: Floats = rows @ tensors["output.weight"][words].T
    return logits + tensors["output.bias"][words] if task.output_bias else logits


def _transformed(rows: Floats, config: Transform, tensors: Mapping[str, Floats]) -> Floats:
    """Apply the head's transform: `[S, H]` → `[S, E]`."""
    transformed: Floats = rows @ tensors["transform.dense.weight"].T
    if config.bias:
        transformed = transformed + tensors["transform.dense.bias"]
    transformed = ENCODER_ACTIVATIONS[config.activation](transformed)
    if config.norm_eps is not None:
        scaled = standardized(transformed, config.norm_eps)
        transformed = scaled * tensors["transform.norm.weight"]
        if config.norm_bias:
            transformed = transformed + tensors["transform.norm.bias"]
    return transformed
