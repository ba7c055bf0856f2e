"""Hosts from which pictures are fetched, and the addresses to which their names may lead.

A request could make the service connect to what only the service reaches: its own machine, the
network behind a firewall, or a cloud's metadata (server-side request forgery, CWE-918). A name is
therefore resolved once, every address is checked, and the connection goes to a checked address.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from service.settings.client_values import IMAGE_HOST

PORTS = {"http": 80, "https": 443}
_NAT64 = IPv6Network("64:ff9b::/96")
Address = IPv4Address | IPv6Address


class ImageHosts:
    """Hosts and ports from which pictures may be fetched."""

    def __init__(self, hosts: str) -> None:
        """Parse a valid list.

        Args:
            hosts: `HOST` or `HOST:PORT`, separated by commas. A host is a name, an address, or
                `*.` and the end of a name. Without a port, the default port of the scheme.

        """
        self._entries: list[tuple[str, int | None]] = []
        for entry in hosts.split(","):
            if match := IMAGE_HOST.fullmatch(entry.strip()):
                self._entries.append((canonical(match[1]), int(match[2]) if match[2] else None))

    def allow(self, scheme: str, host: str, port: int) -> bool:
        """Return whether pictures may be fetched from a host, by its name or address."""
        host, default = canonical(host), PORTS[scheme]
        return any(
            port == (default if listed is None else listed) and _matches(entry, host)
            for entry, listed in self._entries
        )

    def allow_address(self, scheme: str, address: str, port: int) -> bool:
        """Return whether a connection may go to an address to which an allowed name leads.

        An address that is not public has to be in the list itself.
        """
        return is_public(ip_address(address)) or self.allow(scheme, address, port)


@functools.lru_cache(maxsize=8)
def image_hosts(setting: str) -> ImageHosts:
    """Return the hosts of a setting, which is parsed once."""
    return ImageHosts(setting)


def is_public(address: Address) -> bool:
    """Return whether an address is of the public internet, also where it contains another one."""
    return all(each.is_global and not each.is_multicast for each in (address, *_inner(address)))


def canonical(host: str) -> str:
    """Return a host in lower case without a final dot; addresses without brackets, compressed."""
    bare = host.strip("[]").lower().removesuffix(".")
    try:
        return ip_address(bare).compressed
    except ValueError:
        return bare


def _matches(entry: str, host: str) -> bool:
    return host.endswith(entry[1:]) if entry.startswith("*.") else host == entry


def _inner(address: Address) -> Sequence[Address]:
    """Return the IPv4 addresses to which a gateway may send packets of an IPv6 address."""
    if isinstance(address, IPv4Address):
        return ()
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        inner.append(IPv4Address(int(address) % 2**32))
    return [each for each in inner if each]
