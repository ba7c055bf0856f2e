"""Name server with the addresses of one name, as a container engine runs it for its services."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator

HEAD = struct.Struct("!6H")
ANSWER = struct.Struct("!HHHIH4s")
FOUND = 0x8580
"""Flags of an authoritative reply without an error (RFC 1035, 4.1.1)."""
A, IN, POINTER = 1, 1, 0xC00C


class Names(socketserver.UDPServer):
    """Server that answers every question for an address with `addresses`, whatever the name."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Question)
        self.addresses: list[str] = []

    @property
    def port(self) -> int:
        """Port on which the server listens."""
        return int(self.server_address[1])

    def reply(self, question: bytes) -> bytes:
        """Return the reply to a message with one question (RFC 1035, 4.1)."""
        number, *_ = HEAD.unpack_from(question)
        end = question.index(b"\0", HEAD.size) + 5
        (kind,) = struct.unpack_from("!H", question, end - 4)
        addresses = self.addresses if kind == A else []
        head = HEAD.pack(number, FOUND, 1, len(addresses), 0, 0)
        rows = [ANSWER.pack(POINTER, A, IN, 1, 4, socket.inet_aton(one)) for one in addresses]
        return head + question[HEAD.size : end] + b"".join(rows)


class _Question(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        content, answering = self.request
        assert isinstance(self.server, Names)
        answering.sendto(self.server.reply(content), self.client_address)


@contextlib.contextmanager
def naming() -> Iterator[Names]:
    """Run a name server on this machine during the block."""
    with Names() as names:
        thread = threading.Thread(target=names.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield names
        names.shutdown()
        thread.join()
