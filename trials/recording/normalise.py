"""Replies without the values that differ between runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter

from testing.client import Reply
from trials.recording.entries import WHOLE_BYTES, Entry, body_entry
from trials.recording.requests import Request

HIDDEN = "#"
"""Replacement of a value that differs between runs."""
VOLATILE_HEADERS = {
    "date",
    "retry-after",
    "x-total-time",
    "x-tokenization-time",
    "x-queue-time",
    "x-inference-time",
    "x-model-fingerprint",
}
"""Headers whose presence is recorded, but not their values."""
UNORDERED_HEADERS = {"allow"}
"""Headers whose values are a set, in any order."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Replacement in the bodies of successful replies."""

    name: str
    why: str
    of: str
    """Pattern of the names of the requests to whose replies the rule applies."""
    apply: Callable[[bytes], bytes]


def _value(names: str, value: str = r"[-+.\w]+") -> Callable[[bytes], bytes]:
    """Return a function that replaces the values of some JSON members."""
    pattern = re.compile(rf'"({names})":(?:"[^"]*"|{value})'.encode())
    return lambda body: pattern.sub(rb'"\1":"#"', body)


def _series(body: bytes) -> bytes:
    """Remove the values of metrics, and sort the lines."""
    lines = (line if line[:1] == b"#" else line.rpartition(b" ")[0] for line in body.splitlines())
    return b"\n".join(sorted({*lines}))


RULES = (
    Rule("metric values", "counts and durations", r"^GET /metrics", _series),
    Rule("versions", "the package's version", r"/info|/openapi|^/dashboard", _value("version")),
    Rule(
        "artifact",
        "golden tensors and measurements depend on the exporting processor",
        r"^GET /info",
        lambda body: _value("hidden|attention|pooled", r"[-+.\de]+")(
            _value("artifact_sha256|fingerprint")(body)
        ),
    ),
    Rule(
        "differences",
        "the engines differ in last bits; `passed` is the result",
        r"^/verify",
        _value("max_abs_diff|min_cosine"),
    ),
)
"""Rules of normalisation; generated request ids in headers and errors are replaced as well."""


def reply_entry(request: Request, reply: Reply, whole_bytes: int) -> Entry:
    """Return a reply's part of a line.

    Args:
        request: request that the reply answers.
        reply: reply as received.
        whole_bytes: maximum length of a whole body, for requests with an exact reply.

    """
    headers = reply.headers
    generated = dict(headers).get("x-request-id", "").encode()
    body, hidden = reply.body, set(VOLATILE_HEADERS)
    if generated and generated not in request.content:
        body = body.replace(b'"request_id":"%s"' % generated, b'"request_id":"#"')
        hidden.add("x-request-id")
    applied = [rule for rule in RULES if reply.status == 200 and re.search(rule.of, request.name)]
    for rule in applied:
        body = rule.apply(body)
    if applied:
        hidden.add("content-length")
    shown = [(name, HIDDEN if name in hidden else _ordered(name, value)) for name, value in headers]
    return {
        "status": reply.status,
        "headers": sorted(shown, key=itemgetter(0)),
        "rules": [rule.name for rule in applied],
        "body": body_entry(body, whole_bytes if request.exact else WHOLE_BYTES),
    }


def _ordered(name: str, value: str) -> str:
    return ", ".join(sorted(value.split(", "))) if name in UNORDERED_HEADERS else value
