"""What a client is asked for, and how it tells what it got; run by the clients' own Python."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

_ASKED = json.loads(sys.argv[1])
URL: str = _ASKED["url"]
MODEL: str = _ASKED["model"]
RANKER: str = _ASKED["ranker"]
KEY: str = _ASKED["key"]
TEXTS: list[str] = _ASKED["texts"]
QUERY: str = _ASKED["query"]
LONG: str = _ASKED["long"]
"""A text that does not fit."""


def failure(call: Callable[[], Any]) -> dict[str, Any]:
    """The exception that a call ends with."""
    try:
        call()
    except Exception as error:  # whatever the client makes of it is told
        return {"type": type(error).__name__, "text": str(error)}
    return {"type": "none", "text": ""}


def tell(**found: Any) -> None:
    """End with what was found; arrays as lists."""
    sys.stdout.write(json.dumps(found, default=lambda array: array.tolist()))
