"""Outputs of an artifact's task head, such as scores of labels, also of free labels (zero-shot).

Notation: S tokens of one text, C labels, V words of the vocabulary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from model.artifact.manifest import DualConfig, Manifest
from model.numerics.task_head import TaskConfig, TaskKind
from service.engines.contract import Floats, TextTask
from service.errors import NoTaskHead, Unprocessable
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions, PreparedTexts
from service.scheduler.outputs import requested

_NAMES: Mapping[TaskKind, str] = {
    "sequence_classification": "texts and pairs",
    "token_classification": "tokens",
    "sparse": "sparse vectors",
    "late_interaction": "token vectors",
    "hybrid": "sparse vectors and token vectors",
}


def required_task(manifest: Manifest, kinds: Collection[TaskKind], checkpoint: str) -> TaskConfig:
    """Return the model's task head, if it is of an accepted kind, or raise `NoTaskHead`.

    The error message names a suitable `checkpoint`.
    """
    task = manifest.task
    if task is None or task.kind not in kinds:
        has = f"a task head for {_NAMES[task.kind]}" if task else "no task head"
        raise NoTaskHead(f"{manifest.model} has {has}: serve {checkpoint} for this route")
    return task


async def task_scores(
    inference: Inference, prepared: PreparedTexts, task: TaskConfig
) -> list[Floats]:
    """Compute the task head's output for each text: logits `[C]` or `[S, C]`, or weights `[V]`."""
    inference.require_use("vectors")
    if task.pairs:
        for index, text in enumerate(prepared.texts):
            if not text.segment_ids.any():
                raise Unprocessable(
                    f"inputs[{index}] is one text; this model scores pairs of a query and a "
                    "document, which its chat template names: send both"
                )
    tasks = [
        TextTask(text.input_ids, text.segment_ids, scores=task.shape(text.size), pixels=text.pixels)
        for text in prepared.texts
    ]
    return [requested(output.scores) for output in await prepared.submit("encode", tasks)]


def probabilities(logits: Floats) -> Floats:
    """Convert logits `[…, C]` to probabilities: softmax of several labels, sigmoid of one."""
    return sigmoid(logits) if logits.shape[-1] == 1 else softmax(logits)


def sigmoid(logits: Floats) -> Floats:
    """Return the probability of each label, whatever the others are."""
    wide = logits.astype(np.float64)
    small = np.exp(-np.abs(wide))
    return (np.where(wide < 0, small, 1.0) / (1 + small)).astype(np.float32)


def softmax(logits: Floats) -> Floats:
    """Return probabilities of labels `[…, C]` of which exactly one applies."""
    wide = logits.astype(np.float64)
    above = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return (above / above.sum(axis=-1, keepdims=True)).astype(np.float32)


TEMPLATE = "This is a photo of {}."
"""Default text of a label, as in transformers' pipeline `zero-shot-image-classification`."""
PLACE = "{}"
"""Place of a label in a template."""


def label_texts(labels: Sequence[str], template: str | None) -> list[str]:
    """Return the text of each label, whose place is in the template once."""
    text = TEMPLATE if template is None else template
    if text.count(PLACE) != 1:
        raise Unprocessable(f"template: put {PLACE} once, where the label goes")
    return [text.replace(PLACE, label) for label in labels]


def label_logits(pictures: Floats, labels: Floats, dual: DualConfig) -> Floats:
    """Return scale · cosine + bias of each picture and label, `[B, C]`.

    Both are unit vectors, `[B, D]` and `[C, D]`. Radford et al. 2021
    (https://arxiv.org/abs/2103.00020), figure 3; the bias is of Zhai et al. 2023
    (https://arxiv.org/abs/2303.15343), section 3.2.
    """
    cosines: Floats = pictures @ labels.T
    return np.float32(dual.logit_scale) * cosines + np.float32(dual.logit_bias)


async def zero_shot_logits(
    dual: DualConfig, *sides: tuple[Inference, PreparedTexts]
) -> list[Floats]:
    """Return the logits of the labels for each picture, `[C]` each.

    The sides are the pictures, then the labels, each with the inference of its tower.
    """
    pooled = EncodeOptions(("pooled",), normalize=True)
    encoded = [await inference.encode(prepared, pooled) for inference, prepared in sides]
    pictures, labels = (np.stack([own["pooled"] for own in side]) for side in encoded)
    return [*await asyncio.to_thread(label_logits, pictures, labels, dual)]
