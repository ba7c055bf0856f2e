"""Fetching of pictures from allowed hosts, within limits of time and size.

A request could make the service connect to what only the service reaches: its own machine, the
network behind a firewall, or a cloud's metadata (server-side request forgery, CWE-918). A name is
therefore resolved once, every address is checked, and the connection goes to a checked address.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any

from service.errors import DeadlinePassed, Unprocessable
from service.http.admission import canonical
from service.settings.groups import IMAGE_HOST
from service.system.budget import Reservation

if TYPE_CHECKING:
    import httpx

PORTS = {"http": 80, "https": 443}
_NAT64 = IPv6Network("64:ff9b::/96")
Address = IPv4Address | IPv6Address


class ImageHosts:
    """Hosts and ports from which pictures may be fetched."""

    def __init__(self, hosts: str) -> None:
        """Parse a valid list of `HOST` or `HOST:PORT`, separated by commas.

        A host is a name, an address, or `*.` and the end of a name. Without a port, the scheme's
        default.
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


def is_public(address: Address) -> bool:
    """Return whether an address is of the public internet, also where it contains another one."""
    return all(each.is_global and not each.is_multicast for each in (address, *_inner(address)))


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


MAX_REDIRECTS = 3
FETCHES = 16
"""Maximum number of fetches of a worker at a time; others wait. A client may have as many as stay
idle (dynamic thresholds: Choudhury and Hahne 1998), half of them if it is alone."""
RESERVED_BYTES = 2**18
"""Bytes of a file that are reserved as its fetch begins, and each time that they have arrived."""
REDIRECTS = (301, 302, 303, 307, 308)
ACCEPTED = ("image/", "application/octet-stream")
"""Beginnings of the content types of replies with a picture; the second is of object stores."""
HEADERS = {"accept": "image/*", "accept-encoding": "identity", "user-agent": "headscope"}
_NAMES = ThreadPoolExecutor(FETCHES, "names")
"""Threads for what cannot be interrupted: the look-up of a name, and the loading of httpx."""
_running: Counter[str] = Counter()
"""Number of each client's fetches."""
_waiting: list[tuple[str, asyncio.Future[None]]] = []
"""Client of each fetch that waits, and the future that lets it begin."""


@dataclass(frozen=True)
class FetchLimits:
    """Limits of one fetch."""

    max_bytes: int
    seconds: float
    """Maximum time, with redirects and the resolution of names, from when the fetch begins."""
    deadline: float
    """`time.monotonic()` by which the fetch ends in any case."""


class Refused(Exception):
    """Reason for which a picture is not fetched, without the caller's data."""


async def fetch(
    url: str,
    field: str,
    hosts: ImageHosts,
    limits: FetchLimits,
    client: str,
    reservation: Reservation,
) -> bytes:
    """Return the file at an address of http or https.

    `field` of the request is named in errors. The reservation grows as the file arrives.

    Raises:
        Unprocessable: the host is not allowed, leads to an address that is not public or elsewhere,
            does not answer with a picture in time, or the file is too large.
        DeadlinePassed: the deadline passed before the fetch could begin.
        Overloaded: there is not enough memory.

    """
    try:
        async with asyncio.timeout(limits.deadline - time.monotonic()):
            await asyncio.sleep(0)  # in which a deadline that has passed ends the block
            await _take(client)
    except TimeoutError:
        raise DeadlinePassed("the deadline passed before all pictures were fetched") from None
    seconds = min(limits.seconds, max(0.0, limits.deadline - time.monotonic()))
    try:
        async with asyncio.timeout(seconds):
            return await _fetch(url, hosts, limits.max_bytes, client, reservation)
    except TimeoutError:
        late = f"the host did not send the picture within {seconds:g} seconds"
        raise Unprocessable(f"{field}: {late}") from None
    except Refused as error:
        raise Unprocessable(f"{field}: {error}") from None
    finally:
        _give_back(client)


async def _take(client: str) -> None:
    """Wait until the client may have another fetch, and count it."""
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    _waiting.append((client, turn))
    _start()
    try:
        await turn
    except asyncio.CancelledError:
        if not turn.cancelled():  # it was given at the same time
            _give_back(client)
        raise


def _start() -> None:
    """Let waiting fetches begin, clients with few of them first."""
    for client, turn in sorted(_waiting, key=lambda waiting: _running[waiting[0]]):
        if turn.cancelled():
            _waiting.remove((client, turn))
        elif _running[client] < FETCHES - _running.total():
            _waiting.remove((client, turn))
            _running[client] += 1
            turn.set_result(None)


def _give_back(client: str) -> None:
    _running[client] -= 1
    if not _running[client]:
        del _running[client]
    _start()


async def _fetch(
    url: str, hosts: ImageHosts, max_bytes: int, client: str, reservation: Reservation
) -> bytes:
    """Return the file at an address, after redirects to the same host."""
    loop = asyncio.get_running_loop()
    certificates = await loop.run_in_executor(_NAMES, _certificates)  # which loads httpx, too
    import httpx  # noqa: PLC0415 - loaded by the first fetch

    target = checked(url, hosts)
    reservation.grow(RESERVED_BYTES)
    options = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(verify=certificates, trust_env=False, limits=options) as http:
        for _ in range(1 + MAX_REDIRECTS):
            address = await _resolved(target, hosts, client)
            request = http.build_request(
                "GET",
                target.copy_with(host=address),
                headers={**HEADERS, "host": target.netloc.decode("ascii")},
                extensions={"sni_hostname": target.raw_host.decode("ascii")},
                timeout=None,
            )
            try:
                response = await http.send(request, stream=True)
                try:
                    if response.status_code not in REDIRECTS:
                        return await _file(response, max_bytes, reservation)
                    target = redirected(target, response.headers, hosts)
                finally:
                    await response.aclose()
            except httpx.HTTPError as error:
                raise Refused(f"the host did not answer ({type(error).__name__})") from None
    raise Refused(f"the host redirects more than {MAX_REDIRECTS} times")


def checked(url: str, hosts: ImageHosts) -> httpx.URL:
    """Return the parts of an address, if its host is allowed."""
    import httpx  # noqa: PLC0415

    try:
        target = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        target = httpx.URL()
    if target.scheme not in PORTS or not target.host:
        raise Refused("an address of http or https, or a data URL, is needed")
    if target.userinfo:
        raise Refused("an address without a user name and password is needed")
    if not hosts.allow(target.scheme, target.raw_host.decode("ascii"), _port(target)):
        raise Refused(
            "this service does not fetch pictures from that host and port (--image-hosts): send "
            "the file in base64"
        )
    return target.copy_with(fragment=None)


async def _resolved(target: httpx.URL, hosts: ImageHosts, client: str) -> str:
    """Return the address of a host to which the connection goes, by one look-up of its name.

    A look-up that goes on after its fetch has ended counts as a fetch of the client.
    """
    name, port = target.raw_host.decode("ascii"), _port(target)
    loop = asyncio.get_running_loop()
    look_up = functools.partial(socket.getaddrinfo, name.strip("[]"), port)
    looking = _NAMES.submit(look_up, type=socket.SOCK_STREAM)
    try:
        found = await asyncio.wrap_future(looking)
    except (OSError, UnicodeError):
        raise Refused("the name of the host is unknown") from None
    except asyncio.CancelledError:
        _running[client] += 1

        def ended(_: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the service has ended
                loop.call_soon_threadsafe(_give_back, client)

        looking.add_done_callback(ended)
        raise
    addresses = [str(address[0]).partition("%")[0] for *_, address in found]
    if not all(hosts.allow_address(target.scheme, each, port) for each in addresses):
        raise Refused(
            "the host has an address that is not public; an operator may list the address in "
            "--image-hosts"
        )
    return addresses[0]


def redirected(target: httpx.URL, headers: Mapping[str, str], hosts: ImageHosts) -> httpx.URL:
    """Return the address to which a reply leads, if it is of the same host and as secure."""
    onward = checked(str(target.join(headers.get("location", ""))), hosts)
    if onward.raw_host != target.raw_host:
        raise Refused("the host redirects to another host: send the address there")
    if (target.scheme, onward.scheme) == ("https", "http"):
        raise Refused("the host redirects from https to http")
    return onward


async def _file(response: httpx.Response, max_bytes: int, reservation: Reservation) -> bytes:
    """Return the body of a reply."""
    kind = response.headers.get("content-type", "").lower()
    if response.status_code != 200:
        raise Refused(f"the host answers {response.status_code}")
    if not kind.startswith(ACCEPTED):
        raise Refused("the host answers with a content type other than image/…")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused("the host answers with a compressed reply")
    declared = response.headers.get("content-length", "0")
    parts, size, reserved = [], int(declared) if declared.isdecimal() else 0, RESERVED_BYTES
    if size <= max_bytes:
        size = 0
        async for part in response.aiter_raw():
            size += len(part)
            if size > max_bytes:
                break
            while size > reserved:
                reservation.grow(RESERVED_BYTES)
                reserved += RESERVED_BYTES
            parts.append(part)
    if size > max_bytes:
        raise Refused(f"the file has more than {max_bytes} bytes (--max-image-bytes)")
    if not size:
        raise Refused("the file is empty")
    reservation.shrink(reserved - size)
    return b"".join(parts)


def _port(target: httpx.URL) -> int:
    return target.port or PORTS[target.scheme]


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Return certifi's certificates and the system's, which include a company's own authority."""
    import httpx  # noqa: PLC0415

    context = httpx.create_ssl_context()
    context.load_default_certs()
    return context
