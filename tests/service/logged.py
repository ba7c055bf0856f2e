"""Log lines of a test, as both formatters write them."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

from service.system import logs

OURS = ("headscope", "headscope.access")


class Log:
    """Lines of both formatters for the same records."""

    def __init__(self) -> None:
        self._text, self._json = io.StringIO(), io.StringIO()
        self.handlers = [logging.StreamHandler(self._text), logging.StreamHandler(self._json)]
        self.handlers[0].setFormatter(logs.LineFormatter(logs.text_line))
        self.handlers[1].setFormatter(logs.LineFormatter(json.dumps))

    @property
    def text(self) -> str:
        return self._text.getvalue()

    @property
    def json(self) -> str:
        return self._json.getvalue()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.json.splitlines()]


@contextlib.contextmanager
def logged() -> Iterator[Log]:
    """Record all log lines of all libraries, from level debug on."""
    log = Log()
    root = logging.getLogger()
    loggers = [root, *map(logging.getLogger, OURS)]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    for handler in log.handlers:
        root.addHandler(handler)
    try:
        yield log
    finally:
        for handler in log.handlers:
            root.removeHandler(handler)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
