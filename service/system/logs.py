"""Logging of every process of the service, as text or JSON lines on standard error.

This module decides for both formats what is logged:

- messages of this project and of uvicorn are logged in full, messages of other libraries only by
  their source, as they may quote user data;
- exceptions are logged by their type and the frames of this project's code. The message is added
  only for `ServiceError` and `ModelError`, whose messages never quote texts.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from model.errors import ModelError
from service.errors import ServiceError

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the current request."""

_ROOT = Path(__file__).resolve().parents[2]
_OURS = ("headscope", "model", "service")
_SHOWN = ("headscope", "uvicorn")
MOST_EXCEPTIONS = 8
"""Maximum number of exceptions of a chain that are logged."""
QUIET_SECONDS = 60.0
"""Minimum interval between log messages about the same recurring error."""

_log = logging.getLogger("headscope")
_chosen = ("info", "text")


def configure(level: str, log_format: str) -> None:
    """Configure logging of this process, including warnings and uncaught exceptions.

    The level is of this project and of uvicorn; other libraries log from warning on.
    """
    global _chosen  # noqa: PLW0603 - global, as logging is
    _chosen = (level, log_format)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(json.dumps if log_format == "json" else text_line))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    _log.setLevel(level.upper())
    warnings.showwarning = _warned
    sys.excepthook = lambda _kind, error, _trace: _uncaught("the process", error)
    threading.excepthook = lambda failed: _uncaught("a thread", failed.exc_value)
    sys.unraisablehook = lambda failed: _uncaught("a finaliser", failed.exc_value)


def chosen() -> tuple[str, str]:
    """Return the log level and format of this process, for its child processes."""
    return _chosen


class Occasional:
    """Logger of a recurring error, at most once every `QUIET_SECONDS`."""

    def __init__(self, level: int = logging.ERROR) -> None:
        self._level, self._said = level, -QUIET_SECONDS

    def log(self, message: str, *arguments: object) -> None:
        """Log the error, unless it was logged within `QUIET_SECONDS`."""
        now = time.monotonic()
        if now - self._said >= QUIET_SECONDS:
            self._said = now
            _log.log(self._level, message, *arguments)


def printable(text: str) -> str:
    """Return a text with unprintable characters replaced by escapes."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


class LineFormatter(logging.Formatter):
    """Formatter of a record as lines."""

    def __init__(self, write: Callable[[Mapping[str, Any]], str]) -> None:
        """Write each line from its fields by `text_line` or `json.dumps`."""
        super().__init__()
        self._write = write

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, or the lines that it has."""
        return "\n".join(map(self._write, _lines_of(record)))


def line(created: float, level: int, logger: str, message: str, request: str) -> dict[str, Any]:
    """Return the fields that every line has, of the Unix time `created`.

    A record whose attribute `lines` is a list of such lines, with further fields, is logged as
    these lines.
    """
    written = datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds")
    fields = {
        "time": written.replace("+00:00", "Z"),
        "level": logging.getLevelName(level).lower(),
        "logger": logger,
        "message": message,
    }
    return fields | {"request_id": request} if request else fields


def text_line(fields: Mapping[str, Any]) -> str:
    """Return the fields of a line as text, with a further line for each exception."""
    request = f" [{fields['request_id']}]" if "request_id" in fields else ""
    text = (
        f"{fields['time']} {fields['level']} {fields['logger']}{request}: "
        f"{printable(fields['message'])}"
    )
    for error in fields.get("exception", ()):
        detail = f": {printable(error['detail'])}" if "detail" in error else ""
        frames = f" ({', '.join(error['frames'])})" if error["frames"] else ""
        text += f"\n    {error['type']}{detail}{frames}"
    return text


def _lines_of(record: logging.LogRecord) -> list[dict[str, Any]]:
    """Return the lines of a record, with the fields that may be logged."""
    if _is_ours(record) and hasattr(record, "lines"):
        lines: list[dict[str, Any]] = record.lines
        return lines
    fields = line(record.created, record.levelno, record.name, _message(record), request_id.get())
    if record.exc_info and (error := record.exc_info[1]):
        fields["exception"] = [_shown(cause) for cause in islice(_chain(error), MOST_EXCEPTIONS)]
    return [fields]


def _message(record: logging.LogRecord) -> str:
    if _is_ours(record):
        return record.getMessage().strip()
    return f"message not shown, from {record.module}:{record.lineno}:{record.funcName}"


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] in _SHOWN


def _shown(error: BaseException) -> dict[str, Any]:
    shown: dict[str, Any] = {"type": f"{type(error).__module__}.{type(error).__qualname__}"}
    if isinstance(error, ServiceError | ModelError):
        shown["detail"] = str(error)
    return shown | {"frames": list(_frames(error))}


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, the members of its group, and the causes of each."""
    yield error
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _chain(member)
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before:
        yield from _chain(before)


def _frames(error: BaseException) -> Iterator[str]:
    """Yield `file:line:function` of each frame in this project's code, the outermost first."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_ROOT) and path.relative_to(_ROOT).parts[0] in _OURS:
            yield f"{path.relative_to(_ROOT)}:{line}:{frame.f_code.co_qualname}"


def _warned(
    message: Warning | str,  # noqa: ARG001 - may quote user data
    category: type[Warning],
    filename: str,
    lineno: int,
    *_: object,
    **__: object,
) -> None:
    _log.warning("%s at %s:%d", category.__name__, filename, lineno)


def _uncaught(where: str, error: BaseException | None) -> None:
    _log.critical("%s ended by an uncaught exception", where, exc_info=error)
