"""Raw requests: valid HTTP, malformed or ambiguous HTTP, and too large."""

from __future__ import annotations

BODY = b'{"inputs":"a","outputs":["pooled"]}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
GET = b"GET /health/live HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /encode HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
WEBSOCKET = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"

GOOD = {
    "get": GET + b"\r\n",
    "length": POST + LENGTH + b"\r\n" + BODY,
    "chunked": POST + CHUNKED + b"\r\n" + CHUNKS,
    "chunk extension": POST + CHUNKED + b"\r\n" + CHUNKS.replace(b"\r\n", b";a=b\r\n", 1),
    "trailer": POST + CHUNKED + b"\r\n" + CHUNKS[:-2] + b"X-Request-Id: trailer\r\n\r\n",
    "expect": POST + LENGTH + b"Expect: 100-continue\r\n\r\n" + BODY,
    "1.0": b"GET /health/live HTTP/1.0\r\n\r\n",
    "absolute form": b"GET http://b/health/live HTTP/1.1\r\nHost: a\r\n\r\n",
    "line before": b"\r\n" + GET + b"\r\n",
    "websocket": GET + WEBSOCKET + b"\r\n",
    "h2c": GET + UPGRADE + b"\r\n",
    "h2c with a body": POST + LENGTH + UPGRADE + b"\r\n" + BODY,
}
"""Requests that are answered with 200."""

AMBIGUOUS = {
    "length and chunked": POST + LENGTH + CHUNKED + b"\r\n" + CHUNKS,
    "chunked and length": POST + CHUNKED + LENGTH + b"\r\n" + CHUNKS,
    "one length twice": POST + LENGTH + LENGTH + b"\r\n" + BODY,
    "two lengths": POST + LENGTH + b"Content-Length: 3\r\n\r\n" + BODY,
    "list of lengths": POST + b"Content-Length: 3, 3\r\n\r\n" + BODY,
    "signed length": POST + b"Content-Length: +3\r\n\r\n" + BODY,
    "hexadecimal length": POST + b"Content-Length: 0x3\r\n\r\n" + BODY,
    "negative length": POST + b"Content-Length: -3\r\n\r\n" + BODY,
    "empty length": POST + b"Content-Length:\r\n\r\n" + BODY,
    "endless length": POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n" + BODY,
    "gzip": POST + b"Transfer-Encoding: gzip\r\n\r\n" + CHUNKS,
    "gzip, chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS,
    "chunked, gzip": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n" + CHUNKS,
    "chunked twice": POST + CHUNKED + CHUNKED + b"\r\n" + CHUNKS,
    "xchunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS,
    "identity": POST + b"Transfer-Encoding: identity\r\n\r\n" + CHUNKS,
    "vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKS,
    "chunked in 1.0": (POST + CHUNKED).replace(b"1.1", b"1.0") + b"\r\n" + CHUNKS,
    "space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKS,
    "folded header": POST + LENGTH + b"X: a\r\n b\r\n\r\n" + BODY,
    "bare line feeds": (POST + LENGTH).replace(b"\r\n", b"\n") + b"\n" + BODY,
    "one bare line feed": POST + LENGTH + b"X: a\n\r\n" + BODY,
    "bare carriage return": POST + LENGTH + b"X: a\rY: b\r\n\r\n" + BODY,
    "no colon": GET + b"X\r\n\r\n",
    "no name": GET + b": a\r\n\r\n",
    "NUL in a value": GET + b"X: a\0b\r\n\r\n",
    "control in a value": GET + b"X: a\x01\x7f\r\n\r\n",
    "NUL in a name": GET + b"X\0: a\r\n\r\n",
    "no host": b"GET /health/live HTTP/1.1\r\n\r\n",
    "two hosts": GET + b"Host: b\r\n\r\n",
    "two hosts in 1.0": GET.replace(b"1.1", b"1.0") + b"Host: b\r\n\r\n",
    "no host name": b"GET /health/live HTTP/1.1\r\nHost: a/b@c\r\n\r\n",
    "other scheme": b"GET ftp://b/health/live HTTP/1.1\r\nHost: a\r\n\r\n",
    "user in the target": b"GET http://u:p@b/health/live HTTP/1.1\r\nHost: a\r\n\r\n",
    "no path": b"GET http://b HTTP/1.1\r\nHost: a\r\n\r\n",
    "authority form": b"GET b:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    "relative target": b"GET health HTTP/1.1\r\nHost: a\r\n\r\n",
    "fragment": b"GET /health/live#a HTTP/1.1\r\nHost: a\r\n\r\n",
    "not ASCII": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
    "tunnel": b"CONNECT b:443 HTTP/1.1\r\nHost: b\r\n\r\n",
    "tunnel to a path": b"CONNECT http://b/ HTTP/1.1\r\nHost: b\r\n\r\n",
    "0.9": b"GET /health/live\r\n\r\n",
    "called 0.9": GET.replace(b"1.1", b"0.9") + b"\r\n",
    "called 2.0": GET.replace(b"1.1", b"2.0") + b"\r\n",
    "called 1.2": GET.replace(b"1.1", b"1.2") + b"\r\n",
    "preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
    "every byte": bytes(range(256)),
    "chunk without a size": POST + CHUNKED + b"\r\nzz\r\n",
    "negative chunk": POST + CHUNKED + b"\r\n-1\r\n",
    "endless chunk": POST + CHUNKED + b"\r\n" + b"f" * 30 + b"\r\n",
    "chunk of bare line feeds": POST + CHUNKED + b"\r\n" + CHUNKS.replace(b"\r\n", b"\n"),
    "chunk that goes on": POST + CHUNKED + b"\r\n3\r\nabcdXX0\r\n\r\n",
    "length in a trailer": POST + CHUNKED + b"\r\n" + CHUNKS[:-2] + LENGTH + b"\r\n",
}
"""Requests that are answered with 400."""

LARGE = {
    "header": GET + b"X: " + b"a" * 33_000 + b"\r\n\r\n",
    "header of 5 MB": GET + b"X: " + b"a" * 5_000_000 + b"\r\n\r\n",
    "header without an end": GET + b"X: " + b"a" * 33_000,
    "name without an end": GET + b"a" * 33_000,
    "spaces without an end": GET + b"X:" + b" " * 33_000,
    "headers": GET + b"X: a\r\n" * 100 + b"\r\n",
    "headers together": GET + (b"X: " + b"a" * 500 + b"\r\n") * 70 + b"\r\n",
    "target": GET.replace(b"live", b"a" * 33_000) + b"\r\n",
    "target without an end": b"GET /" + b"a" * 33_000,
    "method without an end": b"\r\n" * 20_000,
    "trailer": POST + CHUNKED + b"\r\n" + CHUNKS[:-2] + b"X: " + b"a" * 600_000,
    "chunk extension": POST + CHUNKED + b"\r\n3;" + b"a" * 600_000,
}
"""Requests that are answered with 431."""
