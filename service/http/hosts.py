"""The hosts that requests may be for.

A page of a stranger can have the name that it came from lead to this machine (DNS rebinding): its
requests then count as of the service's own origin. What betrays them is their `Host`.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address

from starlette.types import Scope

from service.errors import MisdirectedRequest

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""Hosts that lead to the client's own machine, whoever resolves them."""
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::[0-9]*)?")


class AllowedHosts:
    """The hosts that requests may name, and always this machine's own."""

    def __init__(self, hosts: Iterable[str]) -> None:
        """Keep names and addresses; of IPv6 in brackets."""
        self._hosts = {_canonical(host) for host in (*LOOPBACK, *hosts)}

    def check(self, scope: Scope) -> None:
        """Refuse a request for another host, before its key is looked at.

        One without `Host`, which HTTP/1.0 allows and no browser sends, is for whoever gets it.

        Raises:
            MisdirectedRequest: the request is for a host that is not allowed.

        """
        for name, value in scope["headers"]:
            if name == b"host" and not self._admits(str(value, "latin-1")):
                raise MisdirectedRequest(
                    "this service does not answer for the host of the request; its setting "
                    "allowed_hosts names those that it does"
                )

    def _admits(self, value: str) -> bool:
        found = _HOST.fullmatch(value.strip())
        return found is not None and _canonical(found[1]) in self._hosts


def allowed_hosts(setting: str | None, host: str) -> AllowedHosts | None:
    """The hosts that requests may be for; None where that is any.

    Args:
        setting: hosts, separated by commas, or `*`; None asks for what suits the address.
        host: what the service listens on.

    Raises:
        OSError: the service cannot listen there, as the name is unknown.

    """
    if setting is None:
        return AllowedHosts([f"[{host}]" if ":" in host else host]) if is_loopback(host) else None
    hosts = [one.strip() for one in setting.split(",")]
    return None if "*" in hosts else AllowedHosts(hosts)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on a host; empty is every address."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
    addresses = [ip_address(str(address[0]).partition("%")[0]) for *_, address in found]
    return bool(addresses) and all(address.is_loopback for address in addresses)


def _canonical(host: str) -> str:
    """One spelling of a host: case, a final dot and IPv6's zeros do not count."""
    if host.startswith("["):
        try:
            return f"[{IPv6Address(host[1:-1]).compressed}]"
        except ValueError:
            return host
    return host.removesuffix(".").lower()
