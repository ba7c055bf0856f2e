"""Arguments and results of the scripts, which the clients' own Python runs."""

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
"""Text that is longer than the model's maximum."""
PICTURES: str = _ASKED["pictures"]
"""Name of a model of pictures."""
FILES: list[str] = _ASKED["files"]
"""Files of pictures in base64."""
URLS = [f"data:image/png;base64,{file}" for file in FILES]


def failure(call: Callable[[], Any]) -> dict[str, Any]:
    """Return the type and message of the exception that a call raises."""
    try:
        call()
    except Exception as error:  # of any type: the test compares it
        return {"type": type(error).__name__, "text": str(error)}
    return {"type": "none", "text": ""}


def tell(**found: Any) -> None:
    """Print the script's result as JSON, with arrays as lists."""
    sys.stdout.write(json.dumps(found, default=lambda array: array.tolist()))
