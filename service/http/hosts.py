"""Hosts that requests may name in their `Host` header.

A malicious page can let its own domain name resolve to this machine (DNS rebinding). Browsers then
treat the page and the service as one origin, but the `Host` header still has the page's name.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address

from starlette.types import Scope

from service.errors import MisdirectedRequest

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""Hosts that resolve to the client's own machine on every machine."""
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::[0-9]*)?")


class AllowedHosts:
    """Set of the hosts that requests may name; it always contains the loopback hosts."""

    def __init__(self, hosts: Iterable[str]) -> None:
        """Store names and addresses; IPv6 addresses are in brackets."""
        self._hosts = {_canonical(host) for host in (*LOOPBACK, *hosts)}
        self._admitted: bytes | None = None
        """The last `Host` header that was admitted: most requests have the same."""

    def check(self, scope: Scope) -> None:
        """Reject a request that names another host.

        A request without `Host` passes: HTTP/1.0 allows it, and browsers always send `Host`.
        """
        for name, value in scope["headers"]:
            if name != b"host" or value == self._admitted:
                continue
            if not self._admits(str(value, "latin-1")):
                raise MisdirectedRequest(
                    "this service does not answer for the host of the request; its setting "
                    "allowed_hosts names those that it does"
                )
            self._admitted = value

    def _admits(self, value: str) -> bool:
        host = _HOST.fullmatch(value.strip())
        return host is not None and _canonical(host[1]) in self._hosts


def allowed_hosts(setting: str | None, host: str) -> AllowedHosts | None:
    """Return the hosts that requests may name; None for any host.

    Args:
        setting: hosts, separated by commas, or `*` for any host; None allows the loopback hosts
            and `host` if only this machine can reach `host`, and else any host.
        host: host name or address on which the service listens.

    Raises:
        OSError: the name of the host cannot be resolved.

    """
    if setting is None:
        return AllowedHosts([f"[{host}]" if ":" in host else host]) if is_loopback(host) else None
    hosts = [name.strip() for name in setting.split(",")]
    return None if "*" in hosts else AllowedHosts(hosts)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host; an empty host is every address."""
    resolved = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
    addresses = [ip_address(str(address[0]).partition("%")[0]) for *_, address in resolved]
    return bool(addresses) and all(address.is_loopback for address in addresses)


def _canonical(host: str) -> str:
    """Return a host in lower case, without a final dot, and with IPv6 compressed."""
    if host.startswith("["):
        try:
            return f"[{IPv6Address(host[1:-1]).compressed}]"
        except ValueError:
            return host
    return host.removesuffix(".").lower()
