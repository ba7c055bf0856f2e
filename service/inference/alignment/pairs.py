"""Pairs of texts, tokenised to be aligned.

Notation: m tokens of the words of a source, n of a target; L layers of the encoder.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from service.errors import DeadlinePassed, ReplyTooLarge
from service.inference.alignment.matching import SOFTMAX_THRESHOLD, Method
from service.inference.alignment.words import AlignedText, Split, aligned_text
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.tokenization.inputs import characters
from service.inference.tokenization.tokenizer import Options, TokenizedText
from service.scheduler.submission import Caller

PAIR_BYTES = 512 * 2**20
"""Most bytes of the arrays over all tokens and words of one pair, which exist together."""
PAIRS_AT_A_TIME = 16
"""Pairs that are matched between two looks at the deadline."""
TOKEN_PAIR_BYTES = 32
"""Of the arrays that a method makes for each pair of tokens."""
WORD_PAIR_BYTES = 5
"""Of a score, and of whether it is aligned."""


@dataclass(frozen=True)
class AlignmentOptions:
    """How pairs are aligned; no index is negative, and all are in range."""

    method: Method
    split: Split = "punctuation"
    layer: int = 0
    """Hidden state whose vectors are compared, 0 … L; not of `cross`."""
    layers: tuple[int, ...] = ()
    """Of the decoder, whose cross-attention is averaged; of `cross` alone."""
    heads: tuple[int, ...] = ()
    threshold: float = SOFTMAX_THRESHOLD
    """Of `softmax` alone."""


T = TypeVar("T")


def grouped(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """At most `PAIRS_AT_A_TIME` neighbours each."""
    for start in range(0, len(items), PAIRS_AT_A_TIME):
        yield items[start : start + PAIRS_AT_A_TIME]


class Pair(NamedTuple):
    """The words of two texts."""

    source: AlignedText
    target: AlignedText

    @property
    def working_bytes(self) -> int:
        """Bytes of the arrays from which its words are aligned."""
        (source, target), (m, n) = self, self._tokens
        rows, columns = len(source.worded), len(target.worded)
        words = (len(source.pieces) + rows) * n + rows * (len(target.pieces) + columns)
        return TOKEN_PAIR_BYTES * m * n + WORD_PAIR_BYTES * words

    def most_links(self, method: Method) -> int:
        """The most pairs of words that a method can align."""
        (source, target), (m, n) = self, self._tokens
        fewest = min(m, n)
        links = {"cross": n, "mutual": fewest, "itermax": 2 * fewest, "softmax": m * n}[method]
        return min(len(source.worded) * len(target.worded), links * source.spread * target.spread)

    @property
    def _tokens(self) -> tuple[int, int]:
        return len(self.source.tokens), len(self.target.tokens)


@dataclass(frozen=True)
class PreparedPairs:
    """The tokenised texts of a request, and their words."""

    texts: PreparedTexts
    """Of vectors, all sources and then all targets; of `cross`, sources with their targets."""
    pairs: Sequence[Pair]
    truncated: Sequence[tuple[bool, bool]]
    """Of each pair."""

    @property
    def tokens(self) -> int:
        """Of all texts, special ones included."""
        every = (*self.texts.texts, *self.texts.targets)
        return sum(len(text.input_ids) for text in every)

    @property
    def working_bytes(self) -> int:
        """Most bytes of the arrays of the pairs that are matched at a time."""
        return max(sum(pair.working_bytes for pair in group) for group in grouped(self.pairs))


async def prepare_pairs(
    inference: Inference,
    inputs: Sequence[tuple[str, str]],
    options: AlignmentOptions,
    tokenization: Options,
    caller: Caller,
    engine: str | None,
) -> PreparedPairs:
    """Tokenise pairs of texts, each text for itself, and find their words.

    Args:
        inference: of the model.
        inputs: sources and targets.
        options: how they will be aligned.
        tokenization: how they are cut, and with which prompt.
        caller: who asks.
        engine: name of the engine; the service's own when None.

    Raises:
        Unprocessable: too many inputs, or a text that does not fit the model.
        ReplyTooLarge: a pair has too many words and tokens.
        DeadlinePassed: before all words were found.
        EngineUnavailable: the engine has failed, or cannot be started.
        Overloaded: the queue has no room, or the deadline cannot be met.

    """
    sources, targets = (list(texts) for texts in zip(*inputs, strict=True))
    of_source, of_target = (
        dataclasses.replace(tokenization, naming=f"inputs[{{}}][{side}]") for side in (0, 1)
    )
    if options.method == "cross":
        texts = await inference.prepare(sources, of_source, caller, "attention", engine)
        texts = await inference.with_targets(
            texts, targets, dataclasses.replace(of_target, prompt_name=None)
        )
        tokenized = [*zip(texts.texts, texts.targets, strict=True)]
    else:
        texts = await inference.prepare(sources, of_source, caller, "encode", engine)
        more = await inference.prepare(
            targets, of_target, caller, "encode", engine, beside=characters(sources)
        )
        tokenized = [*zip(texts.texts, more.texts, strict=True)]
        timings = dataclasses.replace(texts.timings + more.timings, began=texts.timings.began)
        texts = dataclasses.replace(texts, texts=texts.texts + more.texts, timings=timings)
    pairs = await _with_words([*zip(inputs, tokenized, strict=True)], options.split, caller)
    for index, pair in enumerate(pairs):
        if pair.working_bytes > PAIR_BYTES:
            raise ReplyTooLarge(
                f"inputs[{index}]: to align {len(pair.source.words)} words with "
                f"{len(pair.target.words)} takes {pair.working_bytes} bytes, the limit is "
                f"{PAIR_BYTES}; send shorter texts"
            )
    cut = [(source.truncated, target.truncated) for source, target in tokenized]
    return PreparedPairs(texts, pairs, cut)


async def _with_words(
    texts: Sequence[tuple[tuple[str, str], tuple[TokenizedText, TokenizedText]]],
    split: Split,
    caller: Caller,
) -> list[Pair]:
    """Each pair of texts with its words, some pairs after others."""

    def words(group: Sequence[tuple[tuple[str, str], tuple[TokenizedText, ...]]]) -> list[Pair]:
        return [
            Pair(*(aligned_text(*one, split) for one in zip(pair, found, strict=True)))
            for pair, found in group
        ]

    found: list[Pair] = []
    for group in grouped(texts):
        if found and time.monotonic() >= caller.finish_by:
            raise DeadlinePassed(
                f"the deadline came when {len(found)} of {len(texts)} pairs had their words",
                retry_after_seconds=1,
            )
        found += await asyncio.to_thread(words, group)
    return found
