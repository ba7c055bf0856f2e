"""Word alignments of pairs of texts.

Notation: T tokens of a target, S of a source; W_s and W_t of their words.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.engines.contract import Floats
from service.errors import DeadlinePassed
from service.inference.alignment.matching import Matches, lift, match_cross, match_vectors
from service.inference.alignment.pairs import AlignmentOptions, Pair, PreparedPairs, grouped
from service.inference.attention.maps import LayerMaps
from service.inference.attention.selection import AttentionSelection
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions
from service.scheduler.outputs import requested

_ZERO: Floats = np.zeros((), np.float32)


@dataclass(frozen=True)
class WordAlignment:
    """Word alignment of a pair of texts."""

    links: NDArray[np.intp]
    """Indices of aligned words of the source and the target, `[k, 2]`, ascending."""
    scores: Floats
    """Score of each link, `[k]`."""
    words: Floats
    """Scores of all pairs of words with tokens, `[W_s, W_t]`."""


async def align_vectors(
    inference: Inference, prepared: PreparedPairs, options: AlignmentOptions
) -> list[WordAlignment]:
    """Align the words of pairs by the vectors of their tokens.

    Raises:
        NotExported: a foreign graph lacks the hidden state.
        Overloaded: the queue has no room, or the deadline cannot be met.
        ServiceError: the engine failed.

    """
    wanted = EncodeOptions(options.layer, tokens=True, pooled=False)
    encodings = await inference.encode(prepared.texts, wanted)
    vectors = [np.asarray(encoding.tokens) for encoding in encodings]
    count = len(prepared.pairs)
    jobs = [*zip(prepared.pairs, vectors[:count], vectors[count:], strict=True)]

    def match(pair: Pair, source: Floats, target: Floats) -> WordAlignment:
        both = source[pair.source.tokens], target[pair.target.tokens]
        if options.method == "cross" or not min(map(len, both)):
            return _none(pair)
        return _aligned(pair, match_vectors(*both, options.method, options.threshold))

    def match_all(group: Sequence[tuple[Pair, Floats, Floats]]) -> list[WordAlignment]:
        return [match(*job) for job in group]

    alignments: list[WordAlignment] = []
    for group in grouped(jobs):
        if alignments and time.monotonic() >= prepared.texts.caller.finish_by:
            raise DeadlinePassed(
                f"the deadline came when {len(alignments)} of {count} pairs were aligned",
                retry_after_seconds=1,
            )
        alignments += await asyncio.to_thread(match_all, group)
    return alignments


class CrossAlignment:
    """Alignment of pairs by the mean of the selected heads' cross-attention."""

    def __init__(
        self, inference: Inference, prepared: PreparedPairs, options: AlignmentOptions
    ) -> None:
        """Set up the computation.

        Raises:
            ReplyTooLarge: the maps of a layer of a pair are too large.

        """
        heads = options.layers, options.heads
        selection = AttentionSelection({"cross": heads}, targets=True)
        self._pairs = prepared.pairs
        self._layers = len(options.layers)
        self._stream = inference.attention(prepared.texts, selection, _mean_of_heads)
        self.hidden_bytes = self._stream.hidden_bytes

    async def results(self) -> list[WordAlignment]:
        """Compute the word alignments, in order.

        Raises:
            ServiceError: the request is not admitted, or the engine fails.

        """
        alignments: list[WordAlignment] = []
        total = _ZERO
        async with contextlib.aclosing(self._stream.results()) as results:
            async for result in results:
                if isinstance(result, LayerMaps):
                    total = total + np.asarray(requested(result.weights), np.float32)
                    continue
                mean = total / np.float32(self._layers)
                pair = self._pairs[result.text]
                alignments.append(await asyncio.to_thread(_of_weights, pair, mean))
                total = _ZERO
        return alignments


def _mean_of_heads(maps: Floats) -> Floats:
    """Average maps over heads, `[heads, T, S]` → `[T, S]`."""
    mean: Floats = maps.mean(axis=0)
    return mean


def _of_weights(pair: Pair, weights: Floats) -> WordAlignment:
    """Align a pair by the cross-attention `[T, S]` of all tokens."""
    kept = weights[np.ix_(pair.target.tokens, pair.source.tokens)]
    return _aligned(pair, match_cross(kept)) if kept.size else _none(pair)


def _aligned(pair: Pair, matches: Matches) -> WordAlignment:
    """Convert matches of tokens to the word alignment of a pair."""
    aligned, scores = lift(matches, *pair)
    rows, columns = aligned.nonzero()
    links = np.stack([pair.source.worded[rows], pair.target.worded[columns]], axis=1)
    return WordAlignment(links, scores[rows, columns], scores)


def _none(pair: Pair) -> WordAlignment:
    """Return the empty alignment of a pair in which a text has no tokens."""
    shape = len(pair.source.worded), len(pair.target.worded)
    empty = np.zeros(0, np.float32)
    return WordAlignment(np.zeros((0, 2), np.intp), empty, np.zeros(shape, np.float32))
