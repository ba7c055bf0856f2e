"""Grouping of token labels into labelled spans, as in transformers' TokenClassificationPipeline.

Labels may begin with B- or I- (Ramshaw & Marcus 1995, https://arxiv.org/abs/cmp-lg/9505040); labels
without a prefix count as I-.

Notation: S tokens of one text, C labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from service.engines.contract import Floats
from service.inference.tasks.task_heads import softmax
from service.inference.tokenization.text import Text
from service.inference.tokenization.tokenizer import TextTokenizer

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
    """Options of grouping tokens into spans."""

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
