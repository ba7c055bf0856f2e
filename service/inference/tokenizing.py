"""Tokenising under a request's deadline, in slices that give way to other requests'."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from service.errors import DeadlinePassed, Unprocessable
from service.inference.inputs import Input, characters
from service.inference.tokenizer import Options, TextTokenizer, TokenizedText
from service.system import lower_priority, tokenize_in_the_calling_thread

INLINE_CHARACTERS = 512
"""One input of so many is tokenised on the event loop, which takes at most 0.2 ms; to hand it to a
thread and back costs 0.1 ms of processor time. Longer ones and lists go to a thread."""
SLICE_CHARACTERS = 2**14
"""Characters that are tokenised between two looks at the deadline, some 20 ms; one input alone may
have more."""
CHARACTERS_PER_TOKEN = 16
"""A request may have so many for each token that it may have."""


@dataclass(frozen=True)
class RequestLimits:
    """What one request may hold."""

    max_inputs: int
    max_characters: int
    """Of all inputs together."""


class Tokenizing:
    """The threads that tokenise; one slice of a request at a time, so that none keeps others."""

    def __init__(self, tokenizer: TextTokenizer, limits: RequestLimits, segments: int) -> None:
        """Start nothing yet.

        Args:
            tokenizer: of the artifact.
            limits: of a request.
            segments: that the model tells apart; 0 for none, and then a text may have any.

        """
        tokenize_in_the_calling_thread()
        self.tokenizer = tokenizer
        self._limits = limits
        self._segments = segments
        cores = len(os.sched_getaffinity(0))
        self._threads = ThreadPoolExecutor(cores, "tokenizer", lower_priority)

    async def tokenize(
        self, inputs: Sequence[Input], options: Options, finish_by: float
    ) -> list[TokenizedText]:
        """Tokenise a request's inputs; cancelling the call ends it after the slice that runs.

        Raises:
            Unprocessable: too many inputs or characters, or an input that does not fit the model.
            DeadlinePassed: before all were tokenised.

        """
        if len(inputs) > self._limits.max_inputs:
            raise Unprocessable(
                f"{len(inputs)} inputs in one request; at most {self._limits.max_inputs} are taken"
            )
        total = characters(inputs)
        if total > self._limits.max_characters:
            raise Unprocessable(
                f"the request has {total} characters; at most {self._limits.max_characters} are "
                "taken, send it in parts"
            )
        if len(inputs) == 1 and total <= INLINE_CHARACTERS:
            texts = self.tokenizer.tokenize(inputs, options)
        else:
            texts = await self._in_slices(inputs, options, finish_by)
        for index, text in enumerate(texts):
            if 0 < self._segments <= text.segment_ids.max():
                raise Unprocessable(f"inputs[{index}] is a pair; this model has one segment only")
        return texts

    def close(self) -> None:
        """Let the slices that run finish; nothing more is tokenised."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _in_slices(
        self, inputs: Sequence[Input], options: Options, finish_by: float
    ) -> list[TokenizedText]:
        loop = asyncio.get_running_loop()
        texts: list[TokenizedText] = []
        for part in _slices(inputs):
            if time.monotonic() >= finish_by:
                raise DeadlinePassed(
                    f"the deadline came when {len(texts)} of {len(inputs)} inputs were tokenised",
                    retry_after_seconds=1,
                )
            run = self.tokenizer.tokenize
            texts += await loop.run_in_executor(self._threads, run, part, options, len(texts))
        return texts


def _slices(inputs: Sequence[Input]) -> Iterator[Sequence[Input]]:
    """Neighbours that have at most `SLICE_CHARACTERS` together."""
    start = size = 0
    for index, text in enumerate(inputs):
        own = characters([text])
        if index > start and size + own > SLICE_CHARACTERS:
            yield inputs[start:index]
            start, size = index, 0
        size += own
    yield inputs[start:]
