"""Requests of a recording that are refused: wrong bodies, wrong routes, wrong HTTP."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from testing import raw_http
from trials.recording.requests import BINARY, POOLED, Request, Shape, plain, post

LIMIT = 128 * 2**20
"""Default limit on a reply's bytes."""
BODY_LIMIT = 16 * 2**20
TEXT_ROUTES = ("/encode", "/attention", "/verify")
NOT_JSON = {
    "nothing": b"",
    "spaces": b"  \n",
    "cut off": b'{"inputs": "a"',
    "a comma too many": b'{"inputs": "a",}',
    "two values": b'{"inputs": "a"} {}',
    "single quotes": b"{'inputs': 'a'}",
    "a comment": b'{"inputs": "a"} // b',
    "NaN": b'{"inputs": "a", "layer": NaN}',
    "Infinity": b'{"inputs": "a", "layer": -Infinity}',
    "a surrogate": b'{"inputs": "\\ud800"}',
    "a surrogate in the middle": b'{"inputs": "a\\udc00\\ud83db"}',
    "broken UTF-8": b'{"inputs": "\xff\xfe"}',
    "a surrogate in UTF-8": b'{"inputs": "\xed\xa0\x80"}',
    "overlong UTF-8": b'{"inputs": "\xc0\x80"}',
    "latin-1": '{"inputs": "é"}'.encode("latin-1"),
    "UTF-16": '{"inputs": "a"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"inputs": "a"}',
    "a raw control character": b'{"inputs": "a\x01b"}',
    "deep lists": b'{"inputs": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "deep objects": b'{"a":' * 2000 + b"1" + b"}" * 2000,
    "a bad escape": b'{"inputs": "\\x"}',
    "a number with a zero before": b'{"inputs": "a", "layer": 01}',
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
}
OF_ALL: dict[str, Any] = {
    "no object": [],
    "null": None,
    "a text": "inputs",
    "no inputs": {},
    "inputs null": {"inputs": None},
    "inputs a number": {"inputs": 1},
    "inputs an object": {"inputs": {"a": "b"}},
    "no texts": {"inputs": []},
    "a number among texts": {"inputs": ["a", 1]},
    "a pair among texts": {"inputs": ["a", ["b", "c"]]},
    "a text among pairs": {"inputs": [["b", "c"], "a"]},
    "pair of one": {"inputs": [["a"]]},
    "pair of three": {"inputs": [["a", "b", "c"]]},
    "pair with a number": {"inputs": [["a", 1]]},
    "ids": {"inputs": [101, 102]},
    "truncate 1": {"inputs": "a", "truncate": 1},
    "truncate null": {"inputs": "a", "truncate": None},
    "an unknown field": {"inputs": "a", "input": "b"},
    "an odd unknown field": {"inputs": "a", "<b> c": 1},
    "many unknown fields": {"inputs": "a", **{f"x{n}": n for n in range(20)}},
    "too many fields": {"inputs": "a", **{f"x{n}": n for n in range(70)}},
    "huge unknown field": {"inputs": "a", "x" * 5000: 1},
}
OF_TEXTS: dict[str, dict[str, Any]] = {
    "truncation_direction up": {"truncation_direction": "up"},
    "truncation_direction null": {"truncation_direction": None},
    "unknown prompt": {"prompt_name": "query"},
    "empty prompt": {"prompt_name": ""},
    "prompt 1": {"prompt_name": 1},
    "backend fake": {"backend": "fake"},
    "backend in a list": {"backend": ["onnx"]},
    "several errors": {"truncate": "yes", "backend": 1, "prompt_name": []},
}
OF_ENCODE: dict[str, dict[str, Any]] = {
    "no outputs": {"outputs": []},
    "outputs a text": {"outputs": "pooled"},
    "unknown output": {"outputs": ["sparse"]},
    "outputs twice": {"outputs": ["pooled", "pooled"]},
    "layer 1.0": {"layer": 1.0},
    "layer '1'": {"layer": "1"},
    "layer true": {"layer": True},
    "layer null": {"layer": None},
    "layer huge": {"layer": 10**30},
    "layer 2^63": {"layer": 2**63},
    "pooling median": {"pooling": "median"},
    "normalize 0": {"normalize": 0},
    "dimensions 0": {"dimensions": 0},
    "dimensions -1": {"dimensions": -1},
    "dimensions 1.5": {"dimensions": 1.5},
    "dimensions 10^9": {"dimensions": 10**9},
    "encoding hex": {"encoding_format": "hex"},
    "a field of /attention": {"top_k": 1},
}
OF_ATTENTION: dict[str, dict[str, Any]] = {
    "layers none": {"layers": []},
    "layers a number": {"layers": 0},
    "layers of a text": {"layers": ["0"]},
    "layers true": {"layers": [True]},
    "layers twice": {"layers": [0, 0]},
    "layers twice, once from the end": {"layers": [1, 0, -1, -2, 2, -3, -4, -5, -6]},
    "layers 99": {"layers": [99]},
    "layers huge": {"layers": [10**30]},
    "heads none": {"heads": []},
    "heads 1.0": {"heads": [1.0]},
    "heads twice": {"heads": [1, 1]},
    "heads -99": {"heads": [0, -99]},
    "include none": {"include": []},
    "include a text": {"include": "stats"},
    "include unknown": {"include": ["maps"]},
    "include twice": {"include": ["stats", "stats"]},
    "top_k 0": {"top_k": 0},
    "top_k 1.0": {"top_k": 1.0},
    "top_k huge": {"top_k": 10**30},
    "top_k without weights": {"top_k": 1, "include": ["stats"]},
    "ablate none": {"ablate": []},
    "ablate a pair": {"ablate": [[0, 0]]},
    "ablate half": {"ablate": [{"layer": 0}]},
    "ablate more": {"ablate": [{"layer": 0, "head": 0, "x": 0}]},
    "ablate layer 99": {"ablate": [{"layer": 99, "head": 0}]},
    "ablate head -99": {"ablate": [{"layer": 0, "head": -99}]},
    "ablate twice": {"ablate": [{"layer": 0, "head": 0}] * 2},
    "ablate too many": {"ablate": [{"layer": 0, "head": 0}] * 5000},
    "dtype float64": {"dtype": "float64"},
    "float16 as JSON": {"dtype": "float16"},
    "a field of /encode": {"layer": 0},
}


def errors(shape: Shape) -> Iterator[Request]:
    """Yield all requests that are refused."""
    for path in TEXT_ROUTES:
        for name, content in NOT_JSON.items():
            yield Request("errors", f"{path} not JSON: {name}", post(path, content))
        for name, body in OF_ALL.items():
            yield Request("errors", f"{path} {name}", post(path, body))
    yield from wrong_options(shape)
    yield from too_much(shape)
    yield from wrong_routes()
    yield from raw()


def wrong_options(shape: Shape) -> Iterator[Request]:
    """Yield requests with a valid text and invalid options; the binary form has the same errors."""
    own = {
        "layer beyond the last": {"layer": shape.layers + 1},
        "layer before the first": {"layer": -shape.layers - 2},
        "dimensions beyond the last": {"dimensions": shape.hidden + 1},
    }
    tables = (
        ("/encode", OF_TEXTS | OF_ENCODE | own),
        ("/attention", OF_TEXTS | OF_ATTENTION),
    )
    for path, table in tables:
        for name, options in table.items():
            body = {"inputs": "a", **options}
            yield Request("errors", f"{path} {name}", post(path, body))
    body = {"inputs": "a", "layer": 99}
    yield Request("errors", "/encode layer 99, binary", post("/encode", body, BINARY))
    body = {"inputs": "a", "truncation_direction": "left"}
    yield Request("errors", "/verify with an option", post("/verify", body))


def too_much(shape: Shape) -> Iterator[Request]:
    """Yield requests with more texts, tokens, characters or bytes than the limits."""
    long, longer = shape.text(shape.tokens + 1), "x" * (shape.characters + 1)
    named: dict[str, Any] = {
        "too many inputs": ["a"] * (shape.inputs + 1),
        "second too long": ["a", long],
        "pair too long": [["a", "b"], [long, "a"]],
        "too many characters": longer,
        "too many characters in a pair": [["a", longer]],
    }
    for path in TEXT_ROUTES:
        for name, inputs in named.items():
            yield Request("errors", f"{path} {name}", post(path, {"inputs": inputs}))
            cut = {"inputs": inputs, "truncate": True}
            if "characters" in name:
                yield Request("errors", f"{path} {name}, truncate", post(path, cut))
    each = shape.layers * shape.heads * shape.tokens**2
    texts = [shape.text(shape.tokens)]
    for name, size, headers in (("as JSON", 15, {}), ("binary", 4, BINARY)):
        body = {"inputs": texts * (LIMIT // (each * size) + 1)}
        content = post("/attention", body, headers)
        yield Request("errors", f"/attention reply too large, {name}", content)
    each = shape.tokens * shape.hidden * 15
    body = {"inputs": texts * math.ceil(LIMIT / each + 1)}
    yield Request("errors", "/encode reply too large", post("/encode", body))
    announced = {"content-length": str(BODY_LIMIT + 1), "content-type": "application/json"}
    yield Request("errors", "body too large", plain("POST", "/encode", announced))
    chunk = b"%x\r\n%s\r\n" % (2**20, b" " * 2**20)
    head = {"transfer-encoding": "chunked", "content-type": "application/json"}
    content = plain("POST", "/encode", head) + chunk * 17 + b"0\r\n\r\n"
    yield Request("errors", "chunks too large", content)


def wrong_routes() -> Iterator[Request]:
    """Yield requests for paths and methods that do not exist."""
    for path in ("/none", "/encode/", "/Encode", "/encode/x", "/favicon.ico", "/a%00b", "/%ff"):
        yield Request("errors", f"GET {path}", plain("GET", path))
    yield Request("errors", "POST /none", post("/none", {"inputs": "a"}))
    for path in (*TEXT_ROUTES, "/health", "/info", "/metrics", "/", "/openapi.json"):
        for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"):
            if path in TEXT_ROUTES or method not in ("GET", "HEAD"):
                yield Request("errors", f"{method} {path}", plain(method, path))
    for path in ("/health", "/info", "/metrics", "/"):
        yield Request("errors", f"POST {path}", post(path, {}))
    yield Request("errors", "HEAD /metrics", plain("HEAD", "/metrics"))
    yield Request("errors", "FETCH /info", plain("FETCH", "/info"))


def raw() -> Iterator[Request]:
    """Yield odd and wrong HTTP."""
    tables = (("odd", raw_http.GOOD), ("wrong", raw_http.AMBIGUOUS), ("large", raw_http.LARGE))
    for kind, table in tables:
        for name, content in table.items():
            yield Request("errors", f"{kind} HTTP: {name}", content)
    body = json.dumps({"inputs": "Hello", **POOLED}).encode()
    twice = post("/encode", b'{"inputs":"a","inputs":"Hello","outputs":["pooled"]}')
    yield Request("errors", "/encode a field twice", twice)
    close = post("/encode", body, {"connection": "close"})
    yield Request("errors", "/encode, then close", close)
    after = post("/encode", body) + b"NONSENSE\r\n\r\n"
    yield Request("errors", "nonsense after a request", after, replies=2)
    yield Request("slow", "a head that does not end", b"GET /health/live HTTP/1.1\r\nHost: a\r\n")
    short = plain("POST", "/encode", {"content-type": "application/json", "content-length": "99"})
    yield Request("slow", "a body that does not end", short + b"{")
