"""Trace id of a request, against W3C's valid and invalid examples."""

from __future__ import annotations

import pytest

from service.telemetry.requests import trace_id

TRACE = b"4bf92f3577b34da6a3ce929d0e0e4736"
VALID = b"00-" + TRACE + b"-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([VALID], TRACE.decode()),
        ([b"cc" + VALID[2:] + b"-what-the-future-will-be-like"], TRACE.decode()),
        ([], ""),
        ([VALID, VALID], ""),
        ([b"ff" + VALID[2:]], ""),
        ([VALID.upper()], ""),
        ([VALID.replace(TRACE, b"0" * 32)], ""),
        ([VALID.replace(b"00f067aa0ba902b7", b"0" * 16)], ""),
        ([VALID[:-3]], ""),
    ],
)
def test_only_a_valid_header_has_one(values: list[bytes], found: str) -> None:
    headers = [(b"host", b"a"), *((b"traceparent", value) for value in values)]
    assert trace_id(headers) == found
