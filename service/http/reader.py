"""Parser of a connection's requests, stricter than uvicorn and llhttp.

llhttp accepts the following, which is rejected here: transfer codings other than chunked, HTTP
versions other than 1.0 and 1.1, no Host or several, a target that is not a path, and heads of any
size. A host in the target replaces the Host header (RFC 9112, 3.2.2). Trailers are dropped, since
uvicorn would add them to the headers. An upgrade request is read as a plain request.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.errors import HeaderFieldsTooLarge, InvalidRequest, ServiceError

HEAD_BYTES = 32 * 2**10
"""Maximum bytes of a request line and its headers, and of the framing between chunks of a body."""
HEADERS = 100
"""Maximum number of headers of a request."""
PIPELINED = 64
"""Maximum number of requests that wait on one connection for the reply to an earlier request."""

_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:%\[\]-]*")
_TARGET = re.compile(rb"/[^#]*|\*|https?://[^/?#@]+/[^#]*", re.IGNORECASE)
_UPGRADE_HEADERS = {b"upgrade", b"http2-settings"}


class StrictReader(HttpToolsProtocol, ABC):
    """Reading half of the protocol: parses received bytes, and rejects invalid requests."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.url = b""
        self._in_head = True
        self._uncounted_bytes = 0
        """Bytes received since a head began, or since the last byte of a body."""
        self._hosts = 0
        self._upgrading = False

    @abstractmethod
    def reading(self) -> bool:
        """Return whether received bytes are still parsed; called before they are."""

    @abstractmethod
    def refuse(self, error: ServiceError) -> None:
        """Stop reading, and answer a request that is rejected."""

    @abstractmethod
    def head_is_complete(self) -> None:
        """Count a request whose head is complete."""

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; reject a request that cannot be parsed."""
        self._unset_keepalive_if_required()
        if not self.reading():
            return
        try:
            self._feed(data)
        except HeaderFieldsTooLarge as error:
            self.refuse(error)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if not isinstance(cause, ServiceError):
                cause = InvalidRequest("this is not a request of HTTP/1.1")
            self.refuse(cause)

    def _feed(self, data: bytes) -> None:
        """Parse received bytes."""
        self._uncounted_bytes += len(data)
        while True:
            try:
                self.parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._check_size()

    def on_message_begin(self) -> None:
        """Start a request at its first byte."""
        super().on_message_begin()
        self._hosts = 0
        self._uncounted_bytes = self._uncounted_bytes or 1

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; drop a trailer."""
        if not self._in_head:
            return
        super().on_header(name, value)
        name = self.headers[-1][0]
        if name == b"host":
            self._hosts += 1
            if self._hosts > 1 or not _HOST.fullmatch(value.strip()):
                raise InvalidRequest("the Host header is not one host")
        elif name == b"transfer-encoding" and (
            value.strip().lower() != b"chunked" or self.parser.get_http_version() != "1.1"
        ):
            raise InvalidRequest("the one transfer coding is chunked, in HTTP/1.1")
        if len(self.headers) > HEADERS:
            raise HeaderFieldsTooLarge(f"the request has more than {HEADERS} headers")

    def on_headers_complete(self) -> None:
        """Check a complete head, and start its request or enqueue it after earlier requests."""
        if len(self.pipeline) >= PIPELINED:
            raise InvalidRequest(f"more than {PIPELINED} requests wait on this connection")
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise InvalidRequest("the version of HTTP must be 1.0 or 1.1")
        if not self._hosts and version == "1.1":
            raise InvalidRequest("the Host header is missing")
        method = self.parser.get_method()
        if not _TARGET.fullmatch(self.url) or method == b"CONNECT":
            raise InvalidRequest("the request's target is not a path")
        if not self.url.startswith((b"/", b"*")):
            self._take_host_of_target()
        if self._uncounted_bytes > HEAD_BYTES:
            sizes = (len(name) + len(value) + 4 for name, value in self.headers)
            self._uncounted_bytes = len(self.url) + sum(sizes)
            self._check_size()
        if self.parser.should_upgrade():
            self._upgrading = True
            return
        super().on_headers_complete()
        self._in_head = False
        self._uncounted_bytes = 0
        self.head_is_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a part of a body."""
        self._uncounted_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Finish a request at its last byte."""
        if self._upgrading:
            self._upgrading = False
            return
        super().on_message_complete()
        self._in_head = True
        self._uncounted_bytes = 0

    def _take_host_of_target(self) -> None:
        host = self.url.partition(b"://")[2].partition(b"/")[0]
        others = [header for header in self.headers if header[0] != b"host"]
        self.headers[:] = [(b"host", host), *others]

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode("ascii")
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        for name, value in self.headers:
            if name == b"connection":
                options = value.split(b",")
                options = [o for o in options if o.strip().lower() not in _UPGRADE_HEADERS]
                lines.append(name + b": " + b",".join(options))
            elif name not in _UPGRADE_HEADERS:
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def _check_size(self) -> None:
        if self._uncounted_bytes > HEAD_BYTES:
            raise HeaderFieldsTooLarge(f"the request's head has more than {HEAD_BYTES} bytes")
