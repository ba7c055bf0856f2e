"""Outputs of a task head, from rows of the texts' last hidden states. numpy only.

Notation: S tokens of one text, H hidden size, C labels, V words of the vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from model.artifact.pooling import TextPooling
from model.artifact.task import TaskConfig

Floats = NDArray[np.float32]
SLICE_TOKENS = 64
"""Maximum number of tokens whose logits over a whole vocabulary are in memory at once."""


def rows_of(
    task: TaskConfig, texts: Sequence[int], last: int
) -> tuple[list[tuple[int, int]], list[TextPooling]]:
    """Return the hidden states or the poolings, one per text, that a task head reads.

    Args:
        task: the task head's config.
        texts: indices of the texts in a batch.
        last: index of the last hidden state.

    """
    match task.pooling:
        case "cls" | "mean" as mode:
            return [], [TextPooling(text, last, mode) for text in texts]
        case _:
            return [(text, last) for text in texts], []


def text_scores(
    task: TaskConfig, rows: Sequence[Floats], score: Callable[[Floats], Floats]
) -> list[Floats]:
    """Return the outputs for texts, each of shape `TaskConfig.shape`.

    Args:
        task: the task head's config.
        rows: rows of each text, `[H]` or `[S, H]`; see `rows_of`.
        score: the task head as a function, `[n, H]` → `[n, C]` or `[1, V]`.

    """
    if task.kind == "sequence_classification":
        return list(score(np.stack(rows)))
    if task.by_token:
        cuts = np.cumsum([len(of_text) for of_text in rows])[:-1]
        return np.split(score(np.concatenate(rows)), cuts)
    join = np.maximum if task.pooling == "max" else np.add
    return [
        functools.reduce(join, [score(part)[0] for part in _slices(of_text)]) for of_text in rows
    ]


def _slices(rows: Floats) -> list[Floats]:
    return [rows[start : start + SLICE_TOKENS] for start in range(0, len(rows), SLICE_TOKENS)]
