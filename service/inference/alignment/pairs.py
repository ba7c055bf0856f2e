"""Pairs of texts, tokenised for alignment.

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
from service.inference.attention.selection import Lengths
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.tokenization.inputs import characters
from service.inference.tokenization.tokenized import TokenizedText
from service.inference.tokenization.tokenizer import Options
from service.scheduler.submission import Caller

PAIR_BYTES = 512 * 2**20
"""Maximum bytes of the arrays over all tokens and words of a pair, which exist together."""
PAIRS_AT_A_TIME = 16
"""Number of pairs matched between two checks of the deadline."""
TOKEN_PAIR_BYTES = 32
"""Bytes of a method's arrays for each pair of tokens."""
WORD_PAIR_BYTES = 5
"""Bytes of the score and the alignment of a pair of words."""


@dataclass(frozen=True)
class AlignmentOptions:
    """Options of alignment, with valid non-negative indices."""

    method: Method
    split: Split = "punctuation"
    layer: int = 0
    """Hidden state whose vectors are compared, 0 … L; not for `cross`."""
    layers: tuple[int, ...] = ()
    """Decoder layers whose cross-attention is averaged; for `cross` only."""
    heads: tuple[int, ...] = ()
    threshold: float = SOFTMAX_THRESHOLD
    """Threshold of `softmax`."""


T = TypeVar("T")


def grouped(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield consecutive groups of at most `PAIRS_AT_A_TIME` items."""
    for start in range(0, len(items), PAIRS_AT_A_TIME):
        yield items[start : start + PAIRS_AT_A_TIME]


class Pair(NamedTuple):
    """Words of two texts."""

    source: AlignedText
    target: AlignedText

    @property
    def working_bytes(self) -> int:
        """Bytes of the arrays for aligning the words."""
        (source, target), (m, n) = self, self._tokens
        rows, columns = len(source.worded), len(target.worded)
        words = (len(source.pieces) + rows) * n + rows * (len(target.pieces) + columns)
        return TOKEN_PAIR_BYTES * m * n + WORD_PAIR_BYTES * words

    def most_links(self, method: Method) -> int:
        """Return the maximum number of word pairs that a method can align."""
        (source, target), (m, n) = self, self._tokens
        fewest = min(m, n)
        links = {"cross": n, "mutual": fewest, "itermax": 2 * fewest, "softmax": m * n}[method]
        return min(len(source.worded) * len(target.worded), links * source.spread * target.spread)

    @property
    def _tokens(self) -> tuple[int, int]:
        return len(self.source.tokens), len(self.target.tokens)


@dataclass(frozen=True)
class PreparedPairs:
    """Tokenised texts of a request, and their words."""

    texts: PreparedTexts
    """Sources with their targets for `cross`; for other methods, all sources, then all targets."""
    pairs: Sequence[Pair]
    truncated: Sequence[tuple[bool, bool]]
    """Whether the source and the target of each pair were truncated."""

    @property
    def tokens(self) -> int:
        """Number of tokens of all texts, including special tokens."""
        return sum(sum(Lengths.of(text)) for text in self.texts.texts)

    @property
    def working_bytes(self) -> int:
        """Maximum bytes of the arrays of pairs that are matched together."""
        return max(sum(pair.working_bytes for pair in group) for group in grouped(self.pairs))


async def prepare_pairs(
    inference: Inference,
    inputs: Sequence[tuple[str, str]],
    options: AlignmentOptions,
    tokenization: Options,
    caller: Caller,
    engine: str | None,
) -> PreparedPairs:
    """Tokenise the texts of pairs separately, and split them into words.

    Args:
        inference: inference of the model.
        inputs: pairs of a source and a target.
        options: options of alignment.
        tokenization: options of truncation and prompt.
        caller: client and deadline of the request.
        engine: name of the engine; None for the model's own.

    Raises:
        Unprocessable: there are too many inputs, or a text does not fit the model.
        ReplyTooLarge: a pair has too many words and tokens.
        DeadlinePassed: the deadline passed before all texts were split.
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
        tokenized = [(text, text.target) for text in texts.texts if text.target]
    else:
        first = await inference.prepare(sources, of_source, caller, "encode", engine)
        second = await inference.prepare(
            targets, of_target, caller, "encode", engine, beside=characters(sources)
        )
        tokenized = [*zip(first.texts, second.texts, strict=True)]
        timings = dataclasses.replace(first.timings + second.timings, began=first.timings.began)
        texts = dataclasses.replace(first, texts=first.texts + second.texts, timings=timings)
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
    """Split each pair of texts into words, checking the deadline between groups."""

    def words(group: Sequence[tuple[tuple[str, str], tuple[TokenizedText, ...]]]) -> list[Pair]:
        return [
            Pair(*(aligned_text(*text, split) for text in zip(pair, tokenized, strict=True)))
            for pair, tokenized in group
        ]

    pairs: list[Pair] = []
    for group in grouped(texts):
        if pairs and time.monotonic() >= caller.finish_by:
            raise DeadlinePassed(
                f"the deadline came when {len(pairs)} of {len(texts)} pairs had their words",
                retry_after_seconds=1,
            )
        pairs += await asyncio.to_thread(words, group)
    return pairs
