"""Balancer of docker-compose.yml, run by this machine's HAProxy, and the name server it asks."""

from __future__ import annotations

import contextlib
import shutil
import socket
import socketserver
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from testing import metrics
from testing.blocking import ask, probe
from testing.process import Service, StartError, clean_environment, free_port

CONFIGURATION = Path(__file__).resolve().parents[1] / "deploy" / "haproxy" / "haproxy.cfg"
SEEN_SECONDS = 30.0
"""Seconds to wait until HAProxy sees a change of the replicas."""


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


def haproxy() -> str | None:
    """Return the path of HAProxy, which Debian installs outside a user's PATH; None if missing."""
    return shutil.which("haproxy") or shutil.which("/usr/sbin/haproxy")


class Balancer(Service):
    """HAProxy with the shipped configuration, before replicas at one port of many addresses."""

    def __init__(self, configuration: Path, names: Names, replica_port: int) -> None:
        program = haproxy()
        if program is None:
            raise StartError("there is no haproxy: apt-get install haproxy")
        self.names = names
        self.replica_port = replica_port
        self.metrics_port = free_port()
        port = free_port()
        variables = {
            "HEADSCOPE_REPLICAS": f"replica:{replica_port}",
            "HEADSCOPE_RESOLVER": f"127.0.0.1:{names.port}",
            "HEADSCOPE_PORT": str(port),
            "HEADSCOPE_BALANCER_METRICS_PORT": str(self.metrics_port),
        }
        command = [program, "-db", "-f", str(configuration)]
        super().__init__(command, port, environment=clean_environment(**variables))

    def ready(self) -> bool:
        """Return whether its metrics port answers, with replicas or without."""
        reply = probe(self.metrics_port, "/health")
        return reply is not None and reply.status in (200, 503)

    def samples(self) -> dict[str, float]:
        """Return HAProxy's metrics."""
        return metrics.samples(ask(self.metrics_port, "/metrics").body.decode())

    def sessions(self, server: str) -> int:
        """Return the number of requests in flight at a server."""
        labels = [("proxy", "replicas"), ("server", server)]
        return int(self.samples()[f"haproxy_server_current_sessions {labels}"])

    def up(self) -> set[str]:
        """Return the names of the servers that HAProxy considers up."""
        names = set()
        for key, value in self.samples().items():
            if key.startswith("haproxy_server_status [") and "('state', 'UP')" in key and value:
                names.add(key.partition("'server', '")[2].partition("'")[0])
        return names

    def failures(self) -> float:
        """Return the number of failed connections and requests so far, retries included."""
        values = self.samples()
        kinds = ("connection_errors", "response_errors", "retry_warnings", "redispatch_warnings")
        return sum(metrics.total(values, f"haproxy_backend_{kind}_total [") for kind in kinds)

    def wait_until_up(self, count: int) -> None:
        """Wait until `count` servers are up.

        Raises:
            StartError: another number is up after `SEEN_SECONDS`.

        """
        self.wait_until(lambda: len(self.up()) == count, SEEN_SECONDS, 0.05)


@contextlib.contextmanager
def balancing(replica_port: int, *, resend: bool = True) -> Iterator[Balancer]:
    """Run a balancer without replicas; add their addresses to its `names`.

    Args:
        replica_port: port on which each replica listens.
        resend: whether lost requests are sent again, as in the configuration.

    """
    text = CONFIGURATION.read_text(encoding="utf-8")
    if not resend:
        before, rule, after = text.partition("    retry-on ")
        assert rule
        text = before + "    retry-on conn-failure\n" + after.partition("\n")[2]
    with naming() as names, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / CONFIGURATION.name
        path.write_text(text, encoding="utf-8")
        with Balancer(path, names, replica_port) as balancer:
            balancer.wait_until_ready()
            yield balancer
