"""What an exit code of a command means, and which failure has which."""

from __future__ import annotations

from enum import IntEnum

from pydantic_core import ValidationError

from model.errors import ModelError, VerificationError
from service.errors import ServiceError
from service.system.logs import printable


class Exit(IntEnum):
    """The exit codes; one above 128 is that of a command which this signal number would end."""

    DONE = 0
    FAILED = 1
    WRONG_USE = 2
    """The command line or a variable is wrong; nothing was begun."""
    SKIPPED = 3
    """Done, but for rows that were skipped."""
    UNVERIFIED = 4
    """The graphs and PyTorch disagree."""
    INTERRUPTED = 128 + 2
    """By Ctrl-C."""
    CLOSED_PIPE = 128 + 13
    """Whoever read the output has left."""


class WrongUseError(ValueError):
    """An option or a variable with a wrong value, or some that exclude each other."""


FAILURES = (ModelError, ServiceError, ValueError, OSError)
"""What a command may end with, told in a line."""


def code_of(failure: Exception) -> Exit:
    """The exit code of one of `FAILURES`."""
    match failure:
        case WrongUseError():
            return Exit.WRONG_USE
        case VerificationError():
            return Exit.UNVERIFIED
        case _:
            return Exit.FAILED


def verified(passed: bool) -> Exit:
    """The exit code of a verification that was made."""
    return Exit.DONE if passed else Exit.UNVERIFIED


def one_line(failure: Exception) -> str:
    """Return a failure's message on one line, with escapes of what a terminal does not print."""
    said = str(failure)
    if isinstance(failure, ValidationError):
        said = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in failure.errors()
        )
    return printable(" ".join(said.split()))
