"""Outputs of an artifact's task head, such as scores of labels.

Notation: S tokens of one text, C labels, V words of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from model.artifact.manifest import Manifest
from model.numerics.task_head import TaskConfig, TaskKind
from service.engines.contract import Floats, TextTask
from service.errors import NoTaskHead, Unprocessable
from service.inference.encoding import PreparedTexts
from service.scheduler.outputs import requested

_NAMES: Mapping[TaskKind, str] = {
    "sequence_classification": "texts and pairs",
    "token_classification": "tokens",
    "sparse": "sparse vectors",
    "late_interaction": "token vectors",
    "hybrid": "sparse vectors and token vectors",
}


def required_task(manifest: Manifest, kinds: Collection[TaskKind], checkpoint: str) -> TaskConfig:
    """Return the model's task head, if it is of an accepted kind.

    Args:
        manifest: manifest of the artifact.
        kinds: accepted kinds of task heads.
        checkpoint: description of a suitable checkpoint, for the error message.

    Raises:
        NoTaskHead: the model has no task head, or one of another kind.

    """
    task = manifest.task
    if task is None or task.kind not in kinds:
        has = f"a task head for {_NAMES[task.kind]}" if task else "no task head"
        raise NoTaskHead(f"{manifest.model} has {has}: serve {checkpoint} for this route")
    return task


async def task_scores(prepared: PreparedTexts, task: TaskConfig) -> list[Floats]:
    """Compute the task head's output for each text: logits `[C]` or `[S, C]`, or weights `[V]`.

    Raises:
        Unprocessable: an input is not a pair, and the task head scores pairs only.
        NotVerified: vectors failed the artifact's verification.
        Overloaded: the queue has no room, or the deadline cannot be met.
        ServiceError: the engine failed.

    """
    prepared.require_use("vectors")
    if task.pairs:
        for index, text in enumerate(prepared.texts):
            if not text.segment_ids.any():
                raise Unprocessable(
                    f"inputs[{index}] is one text; this model scores pairs of a query and a "
                    "document, which its chat template names: send both"
                )
    tasks = [
        TextTask(
            text.input_ids,
            text.segment_ids,
            scores=task.shape(len(text.input_ids)),
            pixels=text.pixels,
        )
        for text in prepared.texts
    ]
    results = await prepared.scheduler.submit("encode", tasks, prepared.caller)
    prepared.timings.add(results)
    return [requested(result.value.scores) for result in results]


def probabilities(logits: Floats) -> Floats:
    """Convert logits `[C]` to probabilities: softmax of several labels, sigmoid of one."""
    return sigmoid(logits) if len(logits) == 1 else softmax(logits)


def sigmoid(logits: Floats) -> Floats:
    """Return the probability of each label, whatever the others are."""
    wide = logits.astype(np.float64)
    small = np.exp(-np.abs(wide))
    return (np.where(wide < 0, small, 1.0) / (1 + small)).astype(np.float32)


def softmax(logits: Floats) -> Floats:
    """Return probabilities of labels of which exactly one applies."""
    wide = logits.astype(np.float64)
    above = np.exp(wide - wide.max())
    return (above / above.sum()).astype(np.float32)
