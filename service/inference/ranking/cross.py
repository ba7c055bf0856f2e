"""Logits of a model that reads the query and a document together.

Notation: S tokens of a pair, D of them tokens of the document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from model.numerics.task_head import TaskConfig
from service.engines.contract import Output, TextTask
from service.inference.ranking.scorer import Method, Scorer, Scoring, part_of
from service.inference.tokenization.tokenized import TokenizedText
from service.scheduler.outputs import requested


@dataclass
class CrossScorer(Scorer):
    """Scores of a cross-encoder; `documents` are pairs of the query and each document."""

    head: TaskConfig
    _own: dict[int, range] = field(default_factory=dict)

    @property
    def scoring(self) -> Scoring:
        """Name of the score."""
        return "logit"

    @property
    def method(self) -> Method:
        """Loss without each token, because the logit of a pair is not a sum over tokens."""
        return "occlusion"

    def task(self, number: int, unseen: tuple[int, ...] = (), *, shares: bool = False) -> TextTask:
        """Return the forward pass of a pair."""
        del shares
        text = self.documents.texts[number]
        scores = self.head.shape(len(text.input_ids))
        return TextTask(text.input_ids, text.segment_ids, scores=scores, unseen=unseen)

    def score(self, number: int, output: Output, unseen: tuple[int, ...] = ()) -> float:
        """Return the logit."""
        del number, unseen
        return float(requested(output.scores)[0])

    def query_tokens(self, number: int) -> range:
        """Return the indices of the query's tokens in the pair of a document."""
        return first_of_pair(self.documents.texts[number], self.own_tokens(number))

    def query_text(self, number: int) -> TokenizedText:
        """Return the query's tokens of a pair."""
        return part_of(self.documents.texts[number], self.query_tokens(number))

    def own_tokens(self, number: int) -> range:
        """Return the indices of the document's tokens in its pair."""
        if number not in self._own:
            self._own[number] = second_of_pair(self.documents.texts[number])
        return self._own[number]


def first_of_pair(pair: TokenizedText, second: range) -> range:
    """Return the indices of the tokens of a pair's first text, without special tokens.

    Args:
        pair: tokens of both texts.
        second: indices of the tokens of the second text.

    """
    mask: Sequence[int] = pair.special_tokens_mask
    own = [token for token, special in enumerate(mask) if not special and token not in second]
    return range(own[0], own[-1] + 1) if own else range(0)


def second_of_pair(pair: TokenizedText) -> range:
    """Return the indices of the tokens of a pair's second text, without special tokens.

    Its tokens have segment 1 in most models. Elsewhere the special tokens that the tokenizer added
    separate the texts; if only one of the texts has tokens, it is the second one if more special
    tokens precede it than follow it.
    """
    mask: Sequence[int] = pair.special_tokens_mask
    if pair.segment_ids.any():
        own = [token for token in np.flatnonzero(pair.segment_ids).tolist() if not mask[token]]
        return range(own[0], own[-1] + 1) if own else range(len(mask), len(mask))
    runs, start = [], 0
    for special, items in groupby(mask):
        end = start + len(list(items))
        if not special:
            runs.append(range(start, end))
        start = end
    if len(runs) == 1 and runs[0].start <= len(mask) - runs[0].stop:
        return range(len(mask), len(mask))
    return runs[-1] if runs else range(len(mask), len(mask))
