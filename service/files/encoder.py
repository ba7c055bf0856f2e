"""Batches and outcomes of a run over files, whose encoder is a local engine or a service."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from service.files.options import TextArrays

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
