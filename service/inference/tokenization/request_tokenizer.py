"""Tokenisation of requests within their limits, memory and deadline."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from service.errors import Unprocessable
from service.inference.tokenization.backlog import SLICE_CHARACTERS, WEIGHT, Backlog
from service.inference.tokenization.inputs import Input, Picture, TextInput, sizes_of
from service.inference.tokenization.text import TEXT_BYTES, ArrayText, Text
from service.inference.tokenization.tokenizer import Options, TextTokenizer
from service.inference.tokenization.truncation import CHARACTERS_PER_TOKEN as EXCERPT_CHARACTERS
from service.inference.tokenization.truncation import MOST_CHARACTERS
from service.scheduler.call import NOTHING, Call, Demand
from service.system.resources import tokenize_in_the_calling_thread

INLINE_CHARACTERS, INPUT_CHARACTERS = 544, 32
"""Maximum number of characters of inputs that are tokenised on the event loop, in at most 0.4 ms; a
thread would take 24 to 78 µs of processor time more. With 4,096 characters, 256 clients at once
would stop the event loop for a second. An input beside its own characters takes the time of
`INPUT_CHARACTERS`."""
SOME_CHARACTERS, CHARACTER_SECONDS = 4096, 1e-6
"""Maximum number of characters of inputs of which one request at a time is tokenised on the event
loop, in at most 3 ms; the next may be after `CHARACTER_SECONDS` for each of its characters."""
INLINE_PIECES = 512
"""Maximum number of characters of other work on the event loop."""
MOST_TOKENS = 4, 8
"""Maximum number of tokens of a character, which are its bytes, and of special tokens of a text."""
WORKING_BYTES = 600
"""Maximum bytes of memory per character while a text is tokenised, measured with a text of
exclamation marks, each of which is a token."""
SAMPLE = ["Tokenising is measured on prose before any request, so that forecasts hold."] * 32
"""Texts of 2,400 characters in all."""

Given = TypeVar("Given", bound=Input)
Result = TypeVar("Result")


class RequestTokenizer:
    """Tokenizer of an artifact, as requests use it."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        """Initialise without starting a thread."""
        tokenize_in_the_calling_thread()
        self.tokenizer, self.limits = tokenizer, tokenizer.limits
        self.separator_ids = tokenizer.separator_ids
        self.target_separator_ids = tokenizer.target_separator_ids
        self.expects_prompt = tokenizer.expects_prompt
        self._backlog = Backlog()
        self._tokens_per_character = 0.25
        self._piece_cost = 1.0
        """Ratio of the time of tokens with their offsets to the time of their ids alone."""
        self._next_at = 0.0
        """`time.monotonic()` from which `SOME_CHARACTERS` may be tokenised on the event loop."""

    def measure(self) -> None:
        """Measure the time of tokenisation and the tokens per character, before any request."""
        size, tokenizer, cut = sum(map(len, SAMPLE)), self.tokenizer, Options(truncate=True)
        tokenizer.tokenize(SAMPLE, cut)  # the first call is slower
        began = time.monotonic()
        texts = tokenizer.tokenize(SAMPLE, cut)
        between = time.monotonic()
        for text in tokenizer.all_tokens(SAMPLE, None, special_tokens=True):
            list(text.steps(len(text.ids)))
        self._tokens_per_character = sum(text.size for text in texts) / size
        seconds = max(between - began, 1e-9)  # a clock may be coarse
        self._backlog.pace = seconds / size
        self._piece_cost = (time.monotonic() - between) / seconds

    def demand(
        self, inputs: Sequence[Input], options: Options, caller: Call, beside: int = 0
    ) -> Demand:
        """Return the predicted demand of a request before its tokenisation.

        The demand of short inputs is zero, as they are tokenised at once.
        """
        sizes = self._sizes(inputs, options, beside)
        size = sum(sizes) + INPUT_CHARACTERS * len(sizes)
        if size <= INLINE_CHARACTERS:
            return NOTHING
        if size <= SOME_CHARACTERS and (now := time.monotonic()) >= self._next_at:
            self._next_at = now + CHARACTER_SECONDS * size
            return NOTHING
        tokens = self._tokens(sizes, options, self._tokens_per_character, 2)
        read = sum(self._read_sizes(inputs, sizes, options))
        seconds = self._backlog.seconds(caller.client, read)
        return Demand(len(sizes), tokens, seconds, exact=False)

    def at_once(self, inputs: Sequence[Input], options: Options, caller: Call) -> list[Text]:
        """Tokenise a request's inputs whose demand is nothing; otherwise as `tokenize`."""
        given: Any = inputs  # `demand` rejects pictures
        texts = self.tokenizer.tokenize(given, options)
        if caller.reservation:
            tokens = sum(map(attrgetter("size"), texts))
            caller.reservation.grow(TEXT_BYTES * len(texts) + Text.token_bytes * tokens)
        return texts

    async def tokenize(
        self, inputs: Sequence[Input], options: Options, caller: Call, beside: int = 0
    ) -> list[Text]:
        """Tokenise a request's inputs, and reserve the memory of the texts.

        Cancelling the call ends it after the running slices. `beside` is the number of further
        characters of the request.

        Raises:
            Unprocessable: too many inputs or characters, or an input that does not fit the model.
            Overloaded: there is not enough memory or time.
            DeadlinePassed: the deadline passed before all inputs were tokenised.

        """
        sizes, reservation = self._sizes(inputs, options, beside), caller.reservation
        if sum(sizes) + INPUT_CHARACTERS * len(sizes) <= INLINE_CHARACTERS:
            return self.at_once(inputs, options, caller)
        tokens = self._tokens(sizes, options, *MOST_TOKENS)
        # encodings of large requests would take too much memory
        kind = ArrayText if sum(sizes) > SLICE_CHARACTERS else Text
        most = kind.token_bytes * tokens + TEXT_BYTES * len(sizes)
        if reservation:
            reservation.grow(most)

        def tokenize(part: Sequence[TextInput], first: int) -> list[Text]:
            texts = self.tokenizer.tokenize(part, options, first)
            return texts if kind is Text else [text.in_arrays() for text in texts]

        read = self._read_sizes(inputs, sizes, options)
        given: Any = inputs  # `_sizes` rejects pictures
        texts = await self._backlog.run(caller, given, read, tokenize, _working_bytes(read))
        if sizes[0] and not texts[0].truncated:
            rate = texts[0].size / sizes[0]
            self._tokens_per_character += WEIGHT * (rate - self._tokens_per_character)
        if reservation:
            reservation.shrink(most - sum(text.nbytes for text in texts))
        return texts

    async def run(
        self,
        inputs: Sequence[Given],
        work: Callable[[Sequence[Given], int], list[Result]],
        caller: Call,
        *,
        pieces: bool = False,
    ) -> list[Result]:
        """Return the results of `work`, a function of some inputs and the index of the first.

        `pieces` is whether it returns tokens with their offsets, of texts whose length the body's
        size alone bounds. Errors are as for `tokenize`.
        """
        sizes = self._sizes(inputs, Options(truncate=pieces), 0)
        if len(sizes) == 1 and sizes[0] <= INLINE_PIECES:
            return work(inputs, 0)
        costs = [self._piece_cost * size for size in sizes] if pieces else sizes
        return await self._backlog.run(caller, inputs, costs, work, _working_bytes(sizes))

    def close(self) -> None:
        """Fail all waiting requests, and wait for the running slices."""
        self._backlog.close()

    def most_tokens(self, inputs: Sequence[Input], options: Options) -> int:
        """Return an upper bound on the number of tokens of the longest input."""
        return self._tokens([max(sizes_of(inputs), default=0)], options, *MOST_TOKENS)

    def _tokens(self, sizes: Sequence[int], options: Options, each: float, special: int) -> int:
        """Return the number of tokens of inputs, by the tokens of a character and of no text."""
        limit = math.inf if options.windows else self.tokenizer.limit(options)
        special += self.tokenizer.template_tokens
        return round(sum(min(limit, each * size + special) for size in sizes))

    def _read_sizes(
        self, inputs: Sequence[Input], sizes: Sequence[int], options: Options
    ) -> list[int]:
        """Return the number of characters of each input that are tokenised.

        Of a text to truncate, it is the size of its first excerpt; of a pair, all characters up to
        the maximum.
        """
        around = self.tokenizer.template_characters
        if not options.truncate:
            return [around + size for size in sizes]
        most = EXCERPT_CHARACTERS * self.tokenizer.limit(options)
        return [
            around + min(size, most if isinstance(given, str) else MOST_CHARACTERS)
            for given, size in zip(inputs, sizes, strict=True)
        ]

    def _sizes(self, inputs: Sequence[Input], options: Options, beside: int) -> Sequence[int]:
        """Return the number of characters of each input; raise if one of them is unfit."""
        kinds = [*map(type, inputs)]
        if Picture in kinds:
            raise Unprocessable(
                f"{options.name(kinds.index(Picture))} is a picture, and only texts are read here: "
                "send a text, or choose a model of pictures"
            )
        if len(kinds) > self.limits.max_inputs:
            raise self.limits.too_many(len(kinds))
        sizes, most = sizes_of(inputs), self.limits.max_request_characters
        if (total := sum(sizes) + beside) > most and not options.truncate:
            raise Unprocessable(
                f"the request has {total} characters; at most {most} are taken of texts that are "
                "not cut: send it in parts, or set `truncate`"
            )
        return sizes


def _working_bytes(sizes: Sequence[int]) -> list[int]:
    """Return the bytes that the tokenizer takes for each text beyond a slice, by its characters."""
    return [WORKING_BYTES * max(0, size - SLICE_CHARACTERS) for size in sizes]
