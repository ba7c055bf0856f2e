"""Interface between a run over files and its encoder, a local engine or a remote service."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from service.files.options import TextArrays
from service.inference.text_warnings import Warnings

PICTURE = "the picture"
"""Name of a picture in errors of this process."""


class Refused(NamedTuple):
    """Rejection of a text that does not fit the model."""

    problem: str

    @classmethod
    def of(cls, error: Exception) -> Refused:
        """Return the rejection that an error about one text describes, in terms of the command."""
        return cls(str(error).replace("inputs[0]", "the text").replace("`truncate`", "--truncate"))

    @classmethod
    def of_picture(cls, error: Exception) -> Refused:
        """Return the rejection that an error about one picture describes."""
        problem = str(error).replace("set `first_frame` to true", "pass --first-frame")
        for name in (f"{PICTURE}: ", "inputs[0].image: ", "inputs[0]: "):
            problem = problem.removeprefix(name)
        return cls(problem)


Outcome = TextArrays | Refused
"""Arrays of a text, or its rejection."""
Pending = list[Future[list[tuple[int, Outcome]]]]
"""Batches of a window; each resolves to the texts' indices in the window and their outcomes."""


def batches_by_length(lengths: Sequence[int], most_tokens: int) -> list[list[int]]:
    """Group the indices of texts by length, with at most `most_tokens` tokens in each group.

    A longer text is a group of its own.
    """
    batches: list[list[int]] = [[]]
    tokens = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batches[-1] and tokens + lengths[index] > most_tokens:
            batches.append([])
            tokens = 0
        batches[-1].append(index)
        tokens += lengths[index]
    return batches


class Encoder(Protocol):
    """Encoder of texts as arrays, which computes started batches concurrently."""

    @property
    def identity(self) -> dict[str, object]:
        """Properties that determine the arrays, beside the texts and the options."""

    @property
    def window_characters(self) -> int:
        """Maximum characters of a window."""

    @property
    def warnings(self) -> Warnings:
        """Warnings about the texts computed so far."""

    def begin(self, texts: Sequence[str]) -> Pending:
        """Start the computation of a window, with each text, or picture at a path, in one batch.

        Raises:
            ServiceError: the engine cannot compute.

        """

    def close(self) -> None:
        """Drop waiting batches, let running batches finish, and release resources."""
