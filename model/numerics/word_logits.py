"""Logits of chosen words of the vocabulary for every token, by a sparse encoder's head.

The head's graph only gives their maximum or sum over tokens, for all words. numpy only.

Notation: S tokens of one text, H hidden size, E features of the transform, n words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from model.config.encoder import ActivationName
from model.numerics.task_head import TaskConfig, Transform
from model.numerics.vector_modules import ACTIVATIONS as OF_MODULES
from model.numerics.vector_modules import Floats


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
    transformed = _ACTIVATIONS[config.activation](transformed)
    if config.norm_eps is not None:
        centred = transformed - transformed.mean(axis=1, keepdims=True)
        variance = np.square(centred).mean(axis=1, keepdims=True)
        transformed = centred / np.sqrt(variance + np.float32(config.norm_eps))
        transformed = transformed * tensors["transform.norm.weight"]
        if config.norm_bias:
            transformed = transformed + tensors["transform.norm.bias"]
    return transformed


def _gelu_tanh(x: Floats) -> Floats:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
    return x * (1 + np.tanh(inner)) / 2


def _quick_gelu(x: Floats) -> Floats:
    return x * OF_MODULES["Sigmoid"](np.float32(1.702) * x)


_ACTIVATIONS: Mapping[ActivationName, Callable[[Floats], Floats]] = {
    "gelu": OF_MODULES["GELU"],
    "gelu_fast": _gelu_tanh,
    "gelu_new": _gelu_tanh,
    "gelu_python": OF_MODULES["GELU"],
    "gelu_pytorch_tanh": _gelu_tanh,
    "quick_gelu": _quick_gelu,
    "relu": OF_MODULES["ReLU"],
    "silu": OF_MODULES["SiLU"],
    "swish": OF_MODULES["SiLU"],
    "tanh": OF_MODULES["Tanh"],
}
