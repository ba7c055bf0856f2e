"""Protocol of what reads a request's inputs: a tokenizer of texts, or preprocessing of pictures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from service.inference.tokenization.inputs import Input
from service.inference.tokenization.text import Text
from service.inference.tokenization.tokenizer import Limits, Options
from service.scheduler.call import Call, Demand


class Separators(Protocol):
    """Ids of the special tokens that end a text, such as [SEP]."""

    @property
    def separator_ids(self) -> Collection[int]:
        """Ids of the tokens that end an input."""

    @property
    def target_separator_ids(self) -> Collection[int]:
        """Ids of the tokens that end a decoder's target."""


class Reader(Separators, Protocol):
    """Reader of inputs within their limits, memory and deadline."""

    @property
    def limits(self) -> Limits:
        """Limits of a single input."""

    @property
    def max_inputs(self) -> int:
        """Maximum number of inputs of a request."""

    def measure(self) -> None:
        """Measure the time of reading, before any request."""

    def demand(
        self, inputs: Sequence[Input], options: Options, caller: Call, beside: int = 0
    ) -> Demand:
        """Return the predicted demand of a request before its inputs are read.

        Raises:
            Unprocessable: the inputs are too many or too large, or not what the model reads.

        """

    async def tokenize(
        self, inputs: Sequence[Input], options: Options, caller: Call, beside: int = 0
    ) -> list[Text]:
        """Return the tokens of each input.

        Raises:
            Unprocessable: the inputs are too many or too large, or one does not fit the model.
            Overloaded: there is not enough memory or time.
            DeadlinePassed: the deadline passed before all inputs were read.

        """

    def lacks_prompt(self, options: Options) -> bool:
        """Return whether inputs get no prompt although the checkpoint has prompts."""

    def most_tokens(self, inputs: Sequence[Input], options: Options) -> int:
        """Return an upper bound on the number of tokens of the longest input."""

    def limit(self, options: Options) -> int:
        """Return the maximum number of tokens of an input, or of each of its windows."""

    def close(self) -> None:
        """Fail all waiting requests, and wait for the running slices."""
