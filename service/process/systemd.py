"""systemd's protocols: readiness, watchdog and status by sd_notify(3), and sockets that it passes.

Without systemd's variables nothing is sent and no socket is taken. The variables are removed from
the environment, so that child processes do not use them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, MutableMapping
from ipaddress import ip_address

from service.process.listener import bound
from service.settings import Settings
from service.system import logs

FIRST_DESCRIPTOR = 3
"""Number of the first passed socket; see sd_listen_fds(3)."""
BEATS = 2
"""Heartbeats in each interval of the watchdog; see sd_watchdog_enabled(3)."""

_log = logging.getLogger("headscope")


class ServiceManager:
    """Messages to systemd; without an address, none are sent."""

    def __init__(self, address: str = "", watchdog_seconds: float | None = None) -> None:
        """Set the UNIX socket of the messages, of which a leading `@` is an abstract address."""
        self._address = address.replace("@", "\0", 1) if address.startswith("@") else address
        self._watchdog_seconds = watchdog_seconds
        self._lost = logs.Occasional()
        self._watch: asyncio.Task[None] | None = None

    def ready(self, status: str) -> None:
        """Report that the service answers requests."""
        self._send("READY=1", f"STATUS={status}")

    def stopping(self, status: str) -> None:
        """Report that the service stops."""
        self._send("STOPPING=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(f"STATUS={status}")

    def watch(self, answers: Callable[[], bool]) -> None:
        """Send heartbeats from the running event loop while the service answers."""
        if self._address and self._watchdog_seconds:
            self._watch = asyncio.create_task(self._beat(answers, self._watchdog_seconds / BEATS))

    async def _beat(self, answers: Callable[[], bool], seconds: float) -> None:
        while True:
            if answers():
                self._send("WATCHDOG=1")
            else:
                _log.error("systemd gets no heartbeat, as the service cannot answer")
            await asyncio.sleep(seconds)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.connect(self._address)
                sender.send("\n".join(lines).encode())
        except OSError as error:
            self._lost.error("systemd does not get %s: %s", lines[0], error.strerror or error)


def service_manager(environment: MutableMapping[str, str] = os.environ) -> ServiceManager:
    """Return the connection to systemd by its variables, and remove them."""
    address = environment.pop("NOTIFY_SOCKET", "")
    usec, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
    mine = not pid or _number("WATCHDOG_PID", pid) == os.getpid()
    watchdog = _number("WATCHDOG_USEC", usec) / 1e6 if usec and mine else None
    return ServiceManager(address, watchdog)


def passed_sockets(environment: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """Return the listening sockets that systemd passes to this process, and remove its variables.

    Raises:
        ValueError: a variable is not a number, or a passed descriptor is not a listening TCP
            socket.

    """
    pid, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if not count or not pid or _number("LISTEN_PID", pid) != os.getpid():
        return []
    passed = range(_number("LISTEN_FDS", count))
    return [_listening(FIRST_DESCRIPTOR + number) for number in passed]


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[tuple[Settings, list[socket.socket]]]:
    """Yield the sockets of a service, and its settings with the address of passed sockets.

    A passed socket at `--metrics-port` serves the metrics; any other replaces `--host` and
    `--port`. Addresses without a passed socket are bound.
    """
    with contextlib.ExitStack() as stack:
        passed = [stack.enter_context(one) for one in passed_sockets()]
        addresses = [(str(host), int(port)) for host, port, *_ in (s.getsockname() for s in passed)]
        clients = [address for address in addresses if address[1] != settings.metrics_port]
        scraped = len(clients) < len(addresses)
        ports = None if clients else settings.port, None if scraped else settings.metrics_port
        sockets = [*passed, *stack.enter_context(bound(settings.host, *ports))]
        if clients:
            host, port = min(clients, key=lambda address: ip_address(address[0]).is_loopback)
            settings = settings.model_copy(update={"host": host, "port": port})
        yield settings, sockets


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal()):
        raise ValueError(f"{name}={value} is not a whole number: systemd sets it; remove it")
    return int(value)


def _listening(descriptor: int) -> socket.socket:
    """Return a passed socket, which later child processes do not inherit."""
    try:
        passed = socket.socket(fileno=descriptor)
        tcp = passed.family in (socket.AF_INET, socket.AF_INET6)
        listens = tcp and passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError:
        listens = False
    if not listens:
        raise ValueError(
            f"LISTEN_FDS: descriptor {descriptor} is not a listening TCP socket: write "
            "ListenStream=ADDRESS:PORT, and no Accept=yes, in the socket unit"
        )
    passed.setblocking(False)
    passed.set_inheritable(False)
    passed.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return passed
