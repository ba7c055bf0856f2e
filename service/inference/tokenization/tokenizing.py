"""Tokenising under a request's deadline, in slices that give way to other requests'."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from model.config.decoder import DecoderConfig
from service.errors import DeadlinePassed, Unprocessable
from service.inference.tokenization.inputs import Input, characters
from service.inference.tokenization.tokenizer import Options, TextTokenizer, TokenizedText
from service.system.resources import lower_priority, tokenize_in_the_calling_thread

INLINE_CHARACTERS = 512
"""One input of so many is tokenised on the event loop, which takes at most 0.2 ms; to hand it to a
thread and back costs 0.1 ms of processor time. Longer ones and lists go to a thread."""
SLICE_CHARACTERS = 2**14
"""Characters that are tokenised between two looks at the deadline, some 20 ms; one input alone may
have more."""
CHARACTERS_PER_TOKEN = 16
"""A request may have so many for each token that it may have."""

Given = TypeVar("Given", bound=Input)
Found = TypeVar("Found")
Work = Callable[[Sequence[Given], int], list[Found]]
"""Some inputs of a request and the index of the first → what the tokenizer makes of each."""


@dataclass(frozen=True)
class RequestLimits:
    """What one request may hold."""

    max_inputs: int
    max_characters: int
    """Of all inputs together."""


class Tokenizing:
    """The threads that tokenise; one slice of a request at a time, so that none keeps others."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        limits: RequestLimits,
        segments: int,
        decoder: DecoderConfig | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            tokenizer: of the artifact.
            limits: of a request.
            segments: that the model tells apart; 0 for none, and then a text may have any.
            decoder: of the model, which has positions of its own.

        """
        tokenize_in_the_calling_thread()
        self.tokenizer = tokenizer
        self._limits = limits
        self._segments = segments
        self._positions = decoder.layers.max_position_embeddings if decoder else 0
        cores = len(os.sched_getaffinity(0))
        self._threads = ThreadPoolExecutor(cores, "tokenizer", lower_priority)

    async def tokenize(
        self, inputs: Sequence[Input], options: Options, finish_by: float, beside: int = 0
    ) -> list[TokenizedText]:
        """Tokenise a request's inputs; cancelling the call ends it after the slice that runs.

        Args:
            inputs: of one request.
            options: how they are tokenised.
            finish_by: `time.monotonic()` of the deadline.
            beside: characters that the request has beside these inputs.

        Raises:
            Unprocessable: too many inputs or characters, or an input that does not fit the model.
            DeadlinePassed: before all were tokenised.

        """

        def work(part: Sequence[Input], first: int) -> list[TokenizedText]:
            return self.tokenizer.tokenize(part, options, first)

        texts = await self.run(inputs, work, finish_by, beside, any_length=options.truncate)
        for index, text in enumerate(texts):
            if 0 < self._segments <= text.segment_ids.max():
                raise Unprocessable(f"inputs[{index}] is a pair; this model has one segment only")
        return texts

    async def tokenize_targets(
        self, targets: Sequence[str], options: Options, finish_by: float, beside: int
    ) -> list[TokenizedText]:
        """Tokenise what a decoder is to have written; as `tokenize`.

        Args:
            targets: of one request.
            options: how they are tokenised.
            finish_by: `time.monotonic()` of the deadline.
            beside: characters of the request's inputs.

        """
        most = min(self.tokenizer.limits.max_tokens, self._positions)
        fitting = dataclasses.replace(options, max_tokens=most)

        def work(part: Sequence[str], first: int) -> list[TokenizedText]:
            return self.tokenizer.tokenize_targets(part, fitting, first)

        return await self.run(targets, work, finish_by, beside, any_length=options.truncate)

    async def run(
        self,
        inputs: Sequence[Given],
        work: Work[Given, Found],
        finish_by: float,
        beside: int = 0,
        *,
        any_length: bool = False,
    ) -> list[Found]:
        """Return the result of the tokenizer's work for each input of a request.

        Args:
            inputs: of one request.
            work: of some of them, and the index of the first.
            finish_by: `time.monotonic()` of the deadline.
            beside: characters that the request has beside these inputs.
            any_length: whether only the body's limit bounds the characters.

        Raises:
            Unprocessable: too many inputs or characters.
            DeadlinePassed: before all were done.

        """
        if len(inputs) > self._limits.max_inputs:
            raise Unprocessable(
                f"{len(inputs)} inputs in one request; at most {self._limits.max_inputs} are taken"
            )
        total = characters(inputs) + beside
        if total > self._limits.max_characters and not any_length:
            raise Unprocessable(
                f"the request has {total} characters; at most {self._limits.max_characters} are "
                "taken of texts that are not cut: send it in parts, or set `truncate`"
            )
        if len(inputs) == 1 and total <= INLINE_CHARACTERS:
            return work(inputs, 0)
        return await self._in_slices(inputs, work, finish_by)

    def close(self) -> None:
        """Let the slices that run finish; nothing more is tokenised."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _in_slices(
        self, inputs: Sequence[Given], work: Work[Given, Found], finish_by: float
    ) -> list[Found]:
        loop = asyncio.get_running_loop()
        texts: list[Found] = []
        for part in _slices(inputs):
            if time.monotonic() >= finish_by:
                raise DeadlinePassed(
                    f"the deadline came when {len(texts)} of {len(inputs)} inputs were tokenised",
                    retry_after_seconds=1,
                )
            texts += await loop.run_in_executor(self._threads, work, part, len(texts))
        return texts


def _slices(inputs: Sequence[Given]) -> Iterator[Sequence[Given]]:
    """Neighbours that have at most `SLICE_CHARACTERS` together."""
    start = size = 0
    for index, text in enumerate(inputs):
        own = characters([text])
        if index > start and size + own > SLICE_CHARACTERS:
            yield inputs[start:index]
            start, size = index, 0
        size += own
    yield inputs[start:]
