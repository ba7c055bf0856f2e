"""All between a run over files and what computes: an engine here, or a service."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from service.files.fields import TextArrays
from service.inference.notices import Notices


class Refused(NamedTuple):
    """Refusal of a text that does not fit the model."""

    problem: str

    @classmethod
    def of(cls, error: Exception) -> Refused:
        """Return the refusal that an error about one text describes, in the command's own words."""
        return cls(str(error).replace("inputs[0]", "the text").replace("`truncate`", "--truncate"))


Outcome = TextArrays | Refused
"""What becomes of one text."""
Pending = list[Future[list[tuple[int, Outcome]]]]
"""The batches of a window: each gives places in the window, and their outcomes."""


class Encoder(Protocol):
    """What computes the arrays of texts; batches that are begun are computed side by side."""

    @property
    def identity(self) -> dict[str, Any]:
        """What the arrays follow from, beside the texts and the options."""

    @property
    def window_characters(self) -> int:
        """Most characters of a window."""

    @property
    def notices(self) -> Notices:
        """Notices about the texts that were computed so far."""

    def begin(self, texts: Sequence[str]) -> Pending:
        """Begin to compute a window; every place of it is in one batch.

        Raises:
            ServiceError: nothing can be computed.

        """

    def close(self) -> None:
        """Drop what waits, let batches that run finish, and release what is held."""
