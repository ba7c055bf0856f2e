"""Exit codes of commands, and the mapping of failures to exit codes."""

from __future__ import annotations

from enum import IntEnum

from pydantic_core import ValidationError

from model.errors import ModelError, VerificationError
from service.errors import ServiceError
from service.system.logs import printable


class Exit(IntEnum):
    """Exit codes; codes above 128 are 128 plus the number of a signal."""

    DONE = 0
    FAILED = 1
    WRONG_USE = 2
    """Invalid command line or variable; no work was done."""
    SKIPPED = 3
    """Done, except for skipped rows."""
    UNVERIFIED = 4
    """Disagreement between the graphs and PyTorch."""
    INTERRUPTED = 128 + 2
    """Interrupted by Ctrl-C."""
    CLOSED_PIPE = 128 + 13
    """Closed pipe: the reader of the output has exited."""


class WrongUseError(ValueError):
    """Option or variable with an invalid value, or mutually exclusive options."""


FAILURES = (ModelError, ServiceError, ValueError, OSError)
"""Exceptions that a command reports as a one-line message."""


def code_of(failure: Exception) -> Exit:
    """Return the exit code of one of `FAILURES`."""
    match failure:
        case WrongUseError():
            return Exit.WRONG_USE
        case VerificationError():
            return Exit.UNVERIFIED
        case _:
            return Exit.FAILED


def verified(passed: bool) -> Exit:
    """Return the exit code of a verification."""
    return Exit.DONE if passed else Exit.UNVERIFIED


def one_line(failure: Exception) -> str:
    """Return a failure's message on one line, with escapes of what a terminal does not print."""
    said = str(failure)
    if isinstance(failure, ValidationError):
        said = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in failure.errors()
        )
    return printable(" ".join(said.split()))
