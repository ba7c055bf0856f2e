"""How long a request may take: the service's own limit, or less if the caller says so."""

from __future__ import annotations

import re
import time

from starlette.requests import Request

from service.errors import Unprocessable

HEADER = "x-request-timeout-ms"
_MILLISECONDS = re.compile(r"[0-9]{1,9}")


def deadline(request: Request) -> float:
    """`time.monotonic()` at which the reply must have begun.

    Raises:
        Unprocessable: the header is no whole number of milliseconds.

    """
    seconds: float = request.app.state.settings.request_timeout_seconds
    asked = request.headers.get(HEADER)
    if asked is not None:
        if not _MILLISECONDS.fullmatch(asked):
            raise Unprocessable(f"{HEADER} must be a whole number of milliseconds")
        seconds = min(seconds, int(asked) / 1000)
    return time.monotonic() + seconds
