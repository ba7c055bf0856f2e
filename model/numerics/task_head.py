"""Config of a task head, and its outputs from rows of the texts' last hidden states. numpy only.

Notation: S tokens of one text, H hidden size, C labels, V words of the vocabulary, D features of a
token's vector.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from model.config.encoder import ActivationName, Part
from model.numerics.late_interaction import LateInteraction
from model.numerics.pooling import TextPooling, pool
from model.numerics.vector_modules import ENCODER_ACTIVATIONS, standardized

Floats = NDArray[np.float32]
TaskKind = Literal[
    "sequence_classification", "token_classification", "sparse", "late_interaction", "hybrid"
]
VectorsName = Literal["sparse", "multivector"]
"""Vectors of a text that a task head computes: weights of words, or a vector a token."""
SLICE_TOKENS = 64
"""Maximum number of tokens whose logits over a whole vocabulary are in memory at once."""


class Transform(Part):
    """Layer before a task head's last map: f(W x + b), and optionally a norm."""

    size: int = Field(gt=0)
    bias: bool = True
    activation: ActivationName
    norm_eps: float | None = None
    """Epsilon of a layer norm after the activation; None without one."""
    norm_bias: bool = True


class TaskConfig(Part):
    """Config of a task head."""

    kind: TaskKind
    outputs: int = Field(gt=0)
    """Number of outputs: C, V, D, or for `hybrid` D + 1, of which the last is a token's weight."""
    labels: tuple[str, ...] = ()
    """Names of the outputs; empty if they are token ids (sparse vectors) or features (token
    vectors)."""
    pooling: Literal["none", "cls", "mean", "last", "max", "sum", "first_two", "cls_mean"]
    """Pooling to one row per text: of the hidden states before sequence classification, or of the
    activated outputs of a sparse vector. `first_two`: the first two tokens, end to end; `cls_mean`:
    the first token, and the mean of the tokens from `first_token` on."""
    first_token: int = Field(0, ge=0)
    """Index of the first token of a mean, such as a picture's first patch."""
    pairs: bool = False
    """Whether only pairs have outputs, since a chat template has a place for each of two texts."""
    activation: Literal["relu", "log1p_relu"] = "relu"
    """Activation of sparse vectors: log(1 + relu(x)), or log(1 + log(1 + relu(x)))."""
    transform: Transform | None = None
    output_bias: bool = True
    late: LateInteraction | None = None
    """Settings of token vectors; None without token vectors."""
    unused_ids: tuple[int, ...] = ()
    """Ids of tokens without a weight in the sparse vectors of `hybrid`."""

    @property
    def vectors(self) -> tuple[VectorsName, ...]:
        """Names of the vectors that the head computes beside the encoder's."""
        by_kind: dict[TaskKind, tuple[VectorsName, ...]] = {
            "sparse": ("sparse",),
            "late_interaction": ("multivector",),
            "hybrid": ("sparse", "multivector"),
        }
        return by_kind.get(self.kind, ())

    def input_size(self, hidden_size: int) -> int:
        """Return the number of features of a row that the head reads."""
        return 2 * hidden_size if self.pooling in ("first_two", "cls_mean") else hidden_size

    @property
    def by_token(self) -> bool:
        """Whether the head has an output for each token of a text."""
        return self.kind in ("token_classification", "late_interaction", "hybrid")

    def shape(self, tokens: int) -> tuple[int, ...]:
        """Return the shape of the output for one text: `[C]`, `[V]`, `[S, C]` or `[S, D]`."""
        return (tokens, self.outputs) if self.by_token else (self.outputs,)


def rows_of(
    task: TaskConfig, texts: Sequence[int], last: int, unseen: Sequence[tuple[int, ...]] = ()
) -> tuple[list[tuple[int, int]], list[TextPooling]]:
    """Return the hidden states or the poolings, one per text, that a task head reads.

    `unseen` are indices of each text's tokens that are masked as keys, which a mean leaves out.
    """
    match task.pooling:
        case "cls" | "last" as mode:
            return [], [TextPooling(text, last, mode) for text in texts]
        case "mean" as mode:
            first = task.first_token
            pairs = zip(texts, unseen or [()] * len(texts), strict=True)
            return [], [
                TextPooling(text, last, mode, first, left_out=hidden) for text, hidden in pairs
            ]
        case _:
            return [(text, last) for text in texts], []


def text_scores(
    task: TaskConfig,
    rows: Sequence[Floats],
    score: Callable[[Floats], Floats],
    unseen: Sequence[tuple[int, ...]] = (),
) -> list[Floats]:
    """Return the outputs for texts, each of shape `TaskConfig.shape`.

    `rows` are `[H]` or `[S, H]` of each text, see `rows_of`; `score` is the head, `[n, H]` → `[n,
    C]` or `[1, V]`. A sparse vector leaves out the tokens in `unseen`.
    """
    if task.kind == "sequence_classification":
        hidden = unseen or [()] * len(rows)
        return list(score(np.stack([_row(task, *pair) for pair in zip(rows, hidden, strict=True)])))
    if task.by_token:
        cuts = np.cumsum([len(of_text) for of_text in rows])[:-1]
        return np.split(score(np.concatenate(rows)), cuts)
    join = np.maximum if task.pooling == "max" else np.add
    seen = [
        np.delete(of_text, hidden, axis=0) if hidden else of_text
        for of_text, hidden in zip(rows, unseen or [()] * len(rows), strict=True)
    ]
    return [
        functools.reduce(join, [score(part)[0] for part in _slices(of_text)]) for of_text in seen
    ]


def _row(task: TaskConfig, states: Floats, unseen: tuple[int, ...]) -> Floats:
    """Return the row that a sequence classification reads.

    `states` are a pooled vector `[H]`; or `[S, H]`, where no pooling of a runtime gives the row.
    """
    if task.pooling == "first_two":
        return states[:2].reshape(-1)
    if task.pooling == "cls_mean":
        first = min(task.first_token, len(states) - 1)  # a part of a picture may lack patches
        return np.concatenate([states[0], pool(states, "mean", first, unseen)])
    return states


def _slices(rows: Floats) -> list[Floats]:
    return [rows[start : start + SLICE_TOKENS] for start in range(0, len(rows), SLICE_TOKENS)]


def word_logits(
    tensors: Mapping[str, Floats], task: TaskConfig, rows: Floats, words: NDArray[np.int64]
) -> Floats:
    """Return logits `[S, n]` of n words for every token, by a sparse encoder's head, in float32.

    The head's graph only gives their maximum or sum over tokens, for all words. `rows` are `[S,
    H]`; only the words' rows of the head's weights are read.
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
