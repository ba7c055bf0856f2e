"""Outputs of an artifact's task head: labels of texts and tokens, also free labels (zero-shot).

Notation: S tokens of one text, C labels, V words of the vocabulary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from model.artifact.manifest import DualConfig, Manifest
from model.numerics.task_head import TaskConfig, TaskKind
from service.engines.contract import Floats, TextTask
from service.errors import NoTaskHead, Unprocessable
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions, PreparedTexts
from service.inference.tokenization.text import Text
from service.inference.tokenization.tokenizer import TextTokenizer
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


Aggregation = Literal["none", "simple", "first", "average", "max"]
"""Units of labelling: every token; adjacent tokens with the same label; or adjacent words, each
with the label of its first token, of the mean of its tokens, or of its highest-scoring token."""
IGNORED = frozenset({"O"})
"""Labels of tokens outside of spans."""


class Span(NamedTuple):
    """Labelled characters of a text."""

    score: np.floating
    label: str
    start: int
    end: int


class TokenLabels(NamedTuple):
    """Logits of a text's tokens."""

    text: str
    """Text of the request."""
    tokens: Text
    logits: Floats
    """Logits of each token, `[S, C]`."""


class Grouping(NamedTuple):
    """Options of grouping tokens into spans, as in transformers' TokenClassificationPipeline.

    Labels may begin with B- or I- (Ramshaw & Marcus 1995, https://arxiv.org/abs/cmp-lg/9505040);
    labels without a prefix count as I-.
    """

    aggregation: Aggregation
    labels: Sequence[str]
    """Names of the C labels."""
    raw: bool = False
    """Whether a token's score is its logit in place of its softmax; for aggregation `none` only."""


def spans(labelled: TokenLabels, grouping: Grouping, tokenizer: TextTokenizer) -> list[Span]:
    """Return the spans of a text in order, without spans of ignored labels."""
    shares, offsets = softmax(labelled.logits), labelled.tokens.offsets
    kept = [i for i, special in enumerate(labelled.tokens.special_tokens_mask) if not special]
    if grouping.aggregation in ("none", "simple"):
        scores = labelled.logits if grouping.raw else shares
        best = shares.argmax(axis=-1).tolist()
        units = [Span(scores[i, best[i]], grouping.labels[best[i]], *offsets[i]) for i in kept]
    else:
        units = []
        continuing = tokenizer.continuing(labelled.text, labelled.tokens)
        for word in _words(kept, continuing):
            share = _of_word(shares[word], grouping.aggregation)
            surest = int(share.argmax())
            start, end = offsets[word[0]][0], offsets[word[-1]][1]
            units.append(Span(share[surest], grouping.labels[surest], start, end))
    merged = units if grouping.aggregation == "none" else _joined(units)
    return [span for span in merged if span.label not in IGNORED]


def _words(tokens: Iterable[int], continuing: Sequence[bool]) -> list[list[int]]:
    """Group tokens into words."""
    words: list[list[int]] = []
    for token in tokens:
        if words and continuing[token]:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _of_word(shares: Floats, aggregation: Aggregation) -> Floats:
    """Aggregate the label probabilities of a word's tokens `[tokens, C]` to `[C]`."""
    match aggregation:
        case "average":
            mean: Floats = shares.mean(axis=0)
            return mean
        case "max":
            return shares[shares.max(axis=-1).argmax()]
    return shares[0]


def _joined(units: Iterable[Span]) -> Iterator[Span]:
    """Merge adjacent spans with the same label, up to a label that begins a new span."""
    groups: list[list[Span]] = []
    for unit in units:
        begins, tag = _tag(unit.label)
        if groups and not begins and tag == _tag(groups[-1][-1].label)[1]:
            groups[-1].append(unit)
        else:
            groups.append([unit])
    for group in groups:
        label = group[0].label.split("-", 1)[-1]
        score = np.mean([unit.score for unit in group])
        yield Span(score, label, group[0].start, group[-1].end)


def _tag(label: str) -> tuple[bool, str]:
    """Return whether a label begins a span, and its name without B- or I-."""
    return label.startswith("B-"), label[2:] if label.startswith(("B-", "I-")) else label


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
    encoded = [await own.encode(prepared, own.plan(pooled)) for own, prepared in sides]
    pictures, labels = (np.stack([own["pooled"] for own in side]) for side in encoded)
    return [*await asyncio.to_thread(label_logits, pictures, labels, dual)]
