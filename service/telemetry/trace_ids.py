"""Trace ids of requests in W3C's Trace Context."""

from __future__ import annotations

import re
from collections.abc import Iterable

_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-.*")


def trace_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the trace id of a request's `traceparent`; empty unless there is one valid header.

    https://www.w3.org/TR/trace-context/#traceparent-header
    """
    values = [value for name, value in headers if name == b"traceparent"]
    match = _TRACEPARENT.fullmatch(values[0]) if len(values) == 1 else None
    return str(match[1], "ascii") if match else ""
