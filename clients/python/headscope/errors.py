"""What the helper raises."""

from __future__ import annotations


class HeadscopeError(Exception):
    """No reply: what the service says is wrong, or that none answers.

    Attributes:
        status: the HTTP status, None if there was no answer.

    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
