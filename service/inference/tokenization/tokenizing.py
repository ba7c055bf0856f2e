"""Tokenising within a request's limits, memory and deadline."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from model.config.decoder import DecoderConfig
from service.errors import Unprocessable
from service.inference.tokenization.backlog import (
    SLICE_CHARACTERS,
    WEIGHT,
    Backlog,
    Kind,
    TokenizerWork,
)
from service.inference.tokenization.excerpt import CHARACTERS_PER_TOKEN as EXCERPT_CHARACTERS
from service.inference.tokenization.excerpt import MOST_CHARACTERS
from service.inference.tokenization.inputs import Input, size_of
from service.inference.tokenization.tokenized import TEXT_BYTES, TOKEN_BYTES, TokenizedText
from service.inference.tokenization.tokenizer import Options, TextTokenizer
from service.scheduler.admission import Demand
from service.scheduler.submission import Caller
from service.system.resources import tokenize_in_the_calling_thread

INLINE_CHARACTERS = 512
"""One input of so many is tokenised on the event loop, which takes at most 0.2 ms; to hand it to a
thread and back costs 0.1 ms of processor time. Longer ones and lists go to a thread."""
CHARACTERS_PER_TOKEN = 4
"""Maximum number of characters of a request for each token that it may have."""
MOST_TOKENS_PER_CHARACTER, SPECIAL_TOKENS = 4, 8
"""Upper bounds of a text's tokens: a character's bytes, and the tokens around the text."""
WORKING_BYTES = 600
"""Most bytes of memory that the tokenizer takes for a character while it reads a text: measured
with a text of exclamation marks, each of which is a token."""
SAMPLE = ["Tokenising is measured on prose before any request, so that forecasts hold."] * 32
"""Texts of 2,400 characters in all."""

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
    """The tokenizer of an artifact as requests use it."""

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
        self._backlog = Backlog()
        self._tokens_per_character = 0.25

    def measure(self) -> None:
        """Measure how long tokenising takes and how many tokens a text has, before any request."""
        size, tokenizer = sum(map(len, SAMPLE)), self.tokenizer
        cut = Options(truncate=True, prompt_name=None)
        tokenizer.tokenize(SAMPLE, cut)  # the first call is slower
        began = time.monotonic()
        texts = tokenizer.tokenize(SAMPLE, cut)
        between = time.monotonic()
        for spelling in tokenizer.spell(SAMPLE, None, special_tokens=True):
            list(spelling.steps(len(spelling.ids)))
        self._tokens_per_character = sum(len(text.input_ids) for text in texts) / size
        self._backlog.expect("texts", size, between - began)
        self._backlog.expect("pieces", size, time.monotonic() - between)

    def demand(
        self, inputs: Sequence[Input], options: Options, caller: Caller, beside: int = 0
    ) -> Demand:
        """Return what a request is expected to ask of an engine, before it is tokenised.

        Of one short input, which is tokenised at once, nothing is expected.

        Raises:
            Unprocessable: too many inputs or characters.

        """
        sizes = [*map(size_of, inputs)]
        self._check(sizes, beside, any_length=options.truncate)
        if _is_short(sizes):
            return Demand(caller, 0, 0)
        most, each = self._limit(options), self._tokens_per_character
        tokens = round(sum(min(most, each * size + 2) for size in sizes))
        read = sum(self._read(inputs, sizes, options))
        return Demand(caller, len(sizes), tokens, self._backlog.seconds(caller.client, read))

    async def tokenize(
        self, inputs: Sequence[Input], options: Options, caller: Caller, beside: int = 0
    ) -> list[TokenizedText]:
        """Tokenise a request's inputs; cancelling the call ends it after the slices that run.

        Args:
            inputs: of one request.
            options: how they are tokenised.
            caller: who asks.
            beside: characters that the request has beside these inputs.

        Raises:
            Unprocessable: too many inputs or characters, or an input that does not fit the model.
            Overloaded: memory or time do not suffice.
            DeadlinePassed: before all were tokenised.

        """

        def work(part: Sequence[Input], first: int) -> list[TokenizedText]:
            return self.tokenizer.tokenize(part, options, first)

        texts = await self._texts(inputs, work, options, caller, beside)
        for index, text in enumerate(texts):
            if 0 < self._segments <= text.segment_ids.max():
                raise Unprocessable(f"inputs[{index}] is a pair; this model has one segment only")
        return texts

    async def tokenize_targets(
        self, targets: Sequence[str], options: Options, caller: Caller, beside: int
    ) -> list[TokenizedText]:
        """Tokenise what a decoder is to have written; as `tokenize`.

        Args:
            targets: of one request.
            options: how they are tokenised.
            caller: who asks.
            beside: characters of the request's inputs.

        """
        most = min(self.tokenizer.limits.max_tokens, self._positions)
        fitting = dataclasses.replace(options, max_tokens=most)

        def work(part: Sequence[str], first: int) -> list[TokenizedText]:
            return self.tokenizer.tokenize_targets(part, fitting, first)

        return await self._texts(targets, work, fitting, caller, beside)

    async def run(
        self,
        inputs: Sequence[Given],
        work: Work[Given, Found],
        caller: Caller,
        *,
        any_length: bool = False,
        kind: Kind = "texts",
    ) -> list[Found]:
        """Return the result of the tokenizer's work for each input of a request.

        Args:
            inputs: of one request.
            work: of some of them, and the index of the first.
            caller: who asks.
            any_length: whether only the body's limit bounds the characters.
            kind: of the work.

        Raises:
            Unprocessable: too many inputs or characters.
            Overloaded: the work would end after the deadline.
            DeadlinePassed: before all were done.

        """
        sizes = [*map(size_of, inputs)]
        self._check(sizes, 0, any_length=any_length)
        if _is_short(sizes):
            return work(inputs, 0)
        return await self._run(TokenizerWork(caller, inputs, sizes, work, kind))

    def close(self) -> None:
        """Let the slices that run finish; nothing more is tokenised."""
        self._backlog.close()

    async def _texts(
        self,
        inputs: Sequence[Given],
        work: Work[Given, TokenizedText],
        options: Options,
        caller: Caller,
        beside: int,
    ) -> list[TokenizedText]:
        sizes = [*map(size_of, inputs)]
        self._check(sizes, beside, any_length=options.truncate)
        reservation, most = caller.reservation, self.most_bytes(sizes, options)
        if reservation:
            reservation.grow(most)
        if _is_short(sizes):
            texts = work(inputs, 0)
        else:
            read = self._read(inputs, sizes, options)
            texts = await self._run(TokenizerWork(caller, inputs, read, work))
            self._observe(sizes[0], texts[0])
        if reservation:
            reservation.shrink(most - sum(text.nbytes for text in texts))
        return texts

    def most_tokens(self, inputs: Sequence[Input], options: Options) -> int:
        """Return the most tokens that the longest of some inputs may have."""
        longest = MOST_TOKENS_PER_CHARACTER * max(map(size_of, inputs), default=0) + SPECIAL_TOKENS
        return min(longest, self._limit(options))

    async def _run(self, asked: TokenizerWork[Given, Found]) -> list[Found]:
        """Hold the memory that slices of long inputs take, for as long as the work lasts."""
        reservation = asked.caller.reservation
        if reservation is None:
            return await self._backlog.run(asked)
        slices = min(self._backlog.threads, len(asked.inputs))
        size = WORKING_BYTES * slices * max(0, max(asked.sizes) - SLICE_CHARACTERS)
        reservation.grow(size)
        found = await self._backlog.run(asked)
        reservation.shrink(size)
        return found

    def most_bytes(self, sizes: Sequence[int], options: Options) -> int:
        """Return the most bytes of memory that texts hold once tokenised, by their characters."""
        most, each = self._limit(options), MOST_TOKENS_PER_CHARACTER
        tokens = sum(min(most, each * size + SPECIAL_TOKENS) for size in sizes)
        return TOKEN_BYTES * tokens + TEXT_BYTES * len(sizes)

    def _limit(self, options: Options) -> int:
        return options.max_tokens or self.tokenizer.limits.max_tokens

    def _read(
        self, inputs: Sequence[Input], sizes: Sequence[int], options: Options
    ) -> Sequence[int]:
        """Return how many characters of each input the tokenizer reads: of a text its first part.

        Pairs are read whole, as far as any text is.
        """
        if not options.truncate:
            return sizes
        most = EXCERPT_CHARACTERS * self._limit(options)
        return [
            min(size, most if isinstance(given, str) else MOST_CHARACTERS)
            for given, size in zip(inputs, sizes, strict=True)
        ]

    def _observe(self, size: int, text: TokenizedText) -> None:
        """Take the tokens of a whole text into the mean."""
        if size and not text.truncated:
            found = len(text.input_ids) / size
            self._tokens_per_character += WEIGHT * (found - self._tokens_per_character)

    def _check(self, sizes: Sequence[int], beside: int, *, any_length: bool) -> None:
        if len(sizes) > self._limits.max_inputs:
            raise Unprocessable(
                f"{len(sizes)} inputs in one request; at most {self._limits.max_inputs} are taken"
            )
        total = sum(sizes) + beside
        if total > self._limits.max_characters and not any_length:
            raise Unprocessable(
                f"the request has {total} characters; at most {self._limits.max_characters} are "
                "taken of texts that are not cut: send it in parts, or set `truncate`"
            )


def _is_short(sizes: Sequence[int]) -> bool:
    """Whether a request has one input, which is tokenised on the event loop."""
    return len(sizes) == 1 and sizes[0] <= INLINE_CHARACTERS
