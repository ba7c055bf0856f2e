"""Listening sockets, bound at the start or passed by systemd, and opened once a service is loaded.

systemd's protocols: readiness, watchdog and status by sd_notify(3), and sockets that it passes.
Without its variables nothing is sent and no socket is taken. The variables are removed from the
environment, so that child processes do not use them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, MutableMapping
from ipaddress import ip_address

from service.settings import Settings
from service.system import logs

BACKLOG = 2048
MOST_AT_ONCE = 64
"""Maximum number of connections accepted in one turn of the event loop."""
RETRY_SECONDS = 0.01
EXHAUSTED_SECONDS = 1.0
"""Pause after the system had no descriptor or memory for a connection."""
_log = logging.getLogger("headscope")
EXHAUSTED = "cannot accept connections for now; new connections wait: %s"


@contextlib.contextmanager
def bound(host: str, *ports: int | None) -> Iterator[list[socket.socket]]:
    """Bind sockets to every address of a host on each given port, without listening yet.

    Raises:
        OSError: the host is unknown, or a port is taken; the message names the port.

    """
    with contextlib.ExitStack() as stack:
        given = [port for port in ports if port is not None]
        yield [listener for port in given for listener in _bound(host, port, stack)]


def _bound(host: str, port: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    """Bind sockets to every address of a host on one port; the stack closes them."""
    sockets: list[socket.socket] = []
    addresses = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    for family, kind, protocol, _, address in dict.fromkeys(addresses):
        listener = stack.enter_context(socket.socket(family, kind, protocol))
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        chosen = sockets[0].getsockname()[1] if sockets else port
        try:
            listener.bind((address[0], chosen, *address[2:]))
        except OSError as error:
            why = f"cannot bind port {chosen} of {address[0]}: {error.strerror}"
            raise OSError(error.errno, why) from None
        sockets.append(listener)
    return sockets


class Listener:
    """Acceptor of connections on one socket, with backpressure."""

    def __init__(
        self, listener: socket.socket, give: Callable[[socket.socket], bool], settings: Settings
    ) -> None:
        """Listen on a bound socket; `give` takes a connection, and returns whether it could."""
        host, port, *_ = listener.getsockname()
        self.scraped = port == settings.metrics_port
        """Whether the socket is the metrics port's, which is closed last."""
        self._socket = listener
        self._give = give
        self._held: socket.socket | None = None
        """Accepted connection that `give` could not take yet."""
        self._exhausted = logs.Occasional()
        listener.listen(BACKLOG)
        self._watch()
        _log.info("%s", address_line(settings, host, port))

    def close(self) -> None:
        """Accept the connections in the backlog, and stop listening."""
        self._accept()
        if self._retry:
            self._retry.cancel()
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _watch(self) -> None:
        self._retry: asyncio.TimerHandle | None = None
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                connection = self._held or self._socket.accept()[0]
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._exhausted.log(EXHAUSTED, error.strerror)
                self._pause(EXHAUSTED_SECONDS)
                return
            if not self._give(connection):
                self._held = connection
                self._pause(RETRY_SECONDS)
                return
            self._held = None
            connection.close()

    def _pause(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        self._retry = loop.call_later(seconds, self._watch)


def address_line(settings: Settings, host: str, port: int) -> str:
    """Return a line that says what is served at an address."""
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    if port == settings.metrics_port:
        return f"metrics and health, without a key: {url}/metrics"
    return f"serving {url}, the dashboard: {url}/"


FIRST_DESCRIPTOR = 3
"""Number of the first passed socket; see sd_listen_fds(3)."""
BEATS = 2
"""Heartbeats in each interval of the watchdog; see sd_watchdog_enabled(3)."""


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
            self._lost.log("systemd does not get %s: %s", lines[0], error.strerror or error)


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
