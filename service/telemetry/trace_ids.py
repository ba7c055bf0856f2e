"""The trace that a request belongs to, as W3C's Trace Context writes it."""

from __future__ import annotations

import re
from collections.abc import Iterable

_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-.*")


def trace_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The trace id of a request's only `traceparent`; empty without one that is valid.

    https://www.w3.org/TR/trace-context/#traceparent-header
    """
    found = [value for name, value in headers if name == b"traceparent"]
    match = _TRACEPARENT.fullmatch(found[0]) if len(found) == 1 else None
    return str(match[1], "ascii") if match else ""
