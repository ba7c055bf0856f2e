"""Requests to the routes for operators and readers, and requests with various headers."""

from __future__ import annotations

from collections.abc import Iterator

from trials.recording.requests import BINARY, POOLED, Request, plain, post


def operations() -> Iterator[Request]:
    """Yield requests of operators and readers."""
    for path in ("/health", "/health/live", "/health/ready"):
        yield Request("operations", f"GET {path}", plain("GET", path))
    for path in ("/health", "/health/live", "/health/ready", "/info"):
        yield Request("operations", f"HEAD {path}", plain("HEAD", path))
    for path in ("/info", "/docs", "/redoc", "/openapi.json"):
        yield Request("pages", f"GET {path}", plain("GET", path))
    files = "index.html main.js api/client.js core/state.js style.css favicon.svg"
    for path in ("/", *(f"/dashboard/{file}" for file in files.split())):
        yield Request("pages", f"GET {path}", plain("GET", path))
    stale = plain("GET", "/", {"if-none-match": '"0", W/"1"'})
    yield Request("pages", "GET / that has changed", stale)
    for path in ("/dashboard/none.js", "/dashboard/../app.py", "/dashboard/", "/dashboard"):
        yield Request("errors", f"GET {path}", plain("GET", path))
    queries = ("/health/live?a=b", "/health?" + "a" * 2000, "/%68ealth/live", "//health/live")
    for path in queries:
        yield Request("operations", f"GET {path[:30]}", plain("GET", path))
    two = plain("GET", "/health/live") + post("/encode", {"inputs": "Hello", **POOLED})
    yield Request("operations", "two requests at once", two, replies=2)


def headers() -> Iterator[Request]:
    """Yield requests with various headers."""
    body = {"inputs": "Hello", **POOLED}
    kind = BINARY["accept"]
    accepts = {
        "anything": "*/*",
        "json": "application/json",
        "html": "text/html",
        "json or binary": f"application/json, {kind}",
        "binary, of less quality": f"{kind};q=0.5, */*",
        "binary in capitals": kind.upper(),
        "nothing": "",
    }
    for name, value in accepts.items():
        yield Request("encode", f"accept {name}", post("/encode", body, {"accept": value}))
    ids = {
        "tame": "abc-1.2_3:/+=@",
        "longest": "a" * 128,
        "too long": "a" * 129,
        "of spaces": "a b",
    }
    for name, value in ids.items():
        given = post("/encode", body, {"x-request-id": value})
        yield Request("encode", f"request id {name}", given)
        given = post("/encode", {}, {"x-request-id": value})
        yield Request("errors", f"request id {name}, error", given)
    for value in ("0", "60000", "999999999", "1000000000", "-1", "1.5", "abc", ""):
        for path in ("/encode", "/attention"):
            asked = post(path, {"inputs": "Hello"}, {"x-request-timeout-ms": value})
            yield Request("errors", f"{path} within {value!r} ms", asked)
    types = {
        "with a charset": "application/json; charset=utf-8",
        "in capitals": "APPLICATION/JSON",
        "text": "text/plain",
        "problem": "application/problem+json",
        "a form": "application/x-www-form-urlencoded",
        "none": "",
    }
    for name, value in types.items():
        given = post("/encode", body, {"content-type": value})
        yield Request("errors", f"content type {name}", given)
    for value in ("gzip", "br", "identity"):
        for path in ("/encode", "/verify"):
            given = post(path, {**body, "layer": "x"}, {"content-encoding": value})
            yield Request("errors", f"{path} content encoding {value}", given)
