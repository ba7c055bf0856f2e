"""Fetching of pictures from allowed hosts, within limits of time and size.

A request could make the service connect to what only the service reaches: its own machine, the
network behind a firewall, or a cloud's metadata (server-side request forgery, CWE-918). A name is
therefore resolved once, every address is checked, and the connection goes to a checked address.

Only a service with `--image-hosts` imports this module, as httpx is of the extra `images`.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import httpx

from service.errors import DeadlinePassed, Unprocessable
from service.http.admission import canonical
from service.settings.groups import IMAGE_HOST
from service.system.budget import Reservation

PORTS = {"http": 80, "https": 443}
_NAT64 = IPv6Network("64:ff9b::/96")
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


class ImageHosts:
    """Hosts and ports from which pictures may be fetched."""

    def __init__(self, hosts: str) -> None:
        """Parse a valid list of `HOST` or `HOST:PORT`, separated by commas.

        A host is a name, an address, or `*.` and the end of a name.
        """
        entries = (IMAGE_HOST.fullmatch(entry.strip()) for entry in hosts.split(","))
        self._entries = [
            (canonical(entry[1]), int(entry[2]) if entry[2] else None) for entry in entries if entry
        ]

    def allow(self, scheme: str, host: str, port: int) -> bool:
        """Return whether pictures may be fetched from a host, by its name or address."""
        host, default = canonical(host), PORTS[scheme]
        return any(
            port == (default if listed is None else listed)
            and (host.endswith(entry[1:]) if entry.startswith("*.") else host == entry)
            for entry, listed in self._entries
        )

    def allow_address(self, scheme: str, address: str, port: int) -> bool:
        """Return whether a connection may go to an address to which an allowed name leads.

        An address that is not public has to be in the list itself.
        """
        return is_public(ip_address(address)) or self.allow(scheme, address, port)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is of the public internet.

    So must be the IPv4 addresses to which a gateway may send packets of an IPv6 address.
    """
    every: list[IPv4Address | IPv6Address | None] = [address]
    if isinstance(address, IPv6Address):
        every += [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        every += [IPv4Address(int(address) % 2**32)] if address in _NAT64 else []
    return all(one.is_global and not one.is_multicast for one in every if one)


class Refused(Exception):
    """Reason for which a picture is not fetched, without the caller's data."""


class ImageFetcher:
    """Fetches of a service, in fair shares between clients; for use on the event loop."""

    def __init__(self, hosts: str, max_bytes: int, seconds: float) -> None:
        """Allow the hosts of a setting; see `ImageHosts`.

        `seconds` is the maximum time of a fetch, with redirects and the resolution of names.
        """
        self._hosts, self._max_bytes, self._seconds = ImageHosts(hosts), max_bytes, seconds
        self._threads = ThreadPoolExecutor(FETCHES, "names")
        """Threads for the look-up of names, which cannot be interrupted."""
        self.running: Counter[str] = Counter()
        """Number of each client's fetches."""
        self._ended = asyncio.Event()
        """Set when a fetch has ended, so that others may begin."""
        certificates = httpx.create_ssl_context()
        certificates.load_default_certs()  # the system's have a company's own authority
        once = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncHTTPTransport(certificates, trust_env=False, limits=once)
        """Transport, which has neither cookies nor redirects nor proxies."""

    async def fetch(
        self, url: str, field: str, client: str, deadline: float, reservation: Reservation
    ) -> bytes:
        """Return the file at an address of http or https.

        The fetch ends at the deadline in any case, by `time.monotonic()`; `field` of the request is
        named in errors. The reservation grows as the file arrives.

        Raises:
            Unprocessable: the host is not allowed, leads to an address that is not public or
                elsewhere, does not answer with a picture in time, or the file is too large.
            DeadlinePassed: the deadline passed before the fetch could begin.
            Overloaded: there is not enough memory.

        """
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await self._take(client)
        except TimeoutError:
            raise DeadlinePassed("the deadline passed before all pictures were fetched") from None
        seconds = min(self._seconds, max(0.0, deadline - time.monotonic()))
        try:
            async with asyncio.timeout(seconds):
                return await self._fetch(url, client, reservation)
        except TimeoutError:
            why = f"the host did not send the picture within {seconds:g} seconds"
        except httpx.HTTPError as error:
            why = f"the host did not answer ({type(error).__name__})"
        except Refused as error:
            why = str(error)
        finally:
            self._give_back(client)
        raise Unprocessable(f"{field}: {why}")

    async def _take(self, client: str) -> None:
        """Wait until the client may have another fetch, and count it."""
        await asyncio.sleep(0)  # in which a deadline that has passed cancels the caller
        while self.running[client] >= FETCHES - self.running.total():
            self._ended.clear()
            await self._ended.wait()
        self.running[client] += 1

    def _give_back(self, client: str) -> None:
        self.running -= Counter([client])
        self._ended.set()

    async def _fetch(self, url: str, client: str, reservation: Reservation) -> bytes:
        """Return the file at an address, after redirects to the same host."""
        target = self._checked(url)
        reservation.grow(RESERVED_BYTES)
        for _ in range(1 + MAX_REDIRECTS):
            request = httpx.Request(
                "GET",
                target.copy_with(host=await self._address(target, client)),
                headers={**HEADERS, "host": target.netloc.decode("ascii")},
                extensions={"sni_hostname": target.raw_host.decode("ascii")},
            )
            response = await self._http.handle_async_request(request)
            try:
                if response.status_code not in REDIRECTS:
                    return await self._file(response, reservation)
                onward = self._checked(response.headers.get("location", ""), target)
            finally:
                await response.aclose()
            if onward.raw_host != target.raw_host:
                raise Refused("the host redirects to another host: send the address there")
            if (target.scheme, onward.scheme) == ("https", "http"):
                raise Refused("the host redirects from https to http")
            target = onward
        raise Refused(f"the host redirects more than {MAX_REDIRECTS} times")

    def _checked(self, url: str, base: httpx.URL | None = None) -> httpx.URL:
        """Return the parts of an address, possibly relative to a base, if its host is allowed."""
        try:
            target = base.join(url) if base else httpx.URL(url)
        except (httpx.InvalidURL, ValueError):
            target = httpx.URL()
        if target.scheme not in PORTS or not target.host:
            raise Refused("an address of http or https, or a data URL, is needed")
        if target.userinfo:
            raise Refused("an address without a user name and password is needed")
        if not self._hosts.allow(target.scheme, target.raw_host.decode("ascii"), _port(target)):
            raise Refused(
                "this service does not fetch pictures from that host and port (--image-hosts): "
                "send the file in base64"
            )
        return target.copy_with(fragment=None)

    async def _address(self, target: httpx.URL, client: str) -> str:
        """Return the address of a host to which the connection goes, by one look-up of its name.

        A look-up that goes on after its fetch has ended counts as a fetch of the client.
        """
        name, port = target.raw_host.decode("ascii").strip("[]"), _port(target)
        look_up = functools.partial(socket.getaddrinfo, name, port, type=socket.SOCK_STREAM)
        looking = asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        try:
            found = await asyncio.shield(looking)
        except (OSError, UnicodeError):
            raise Refused("the name of the host is unknown") from None
        except asyncio.CancelledError:
            self.running[client] += 1
            looking.add_done_callback(lambda _: self._give_back(client))
            raise
        addresses = [str(address[0]).partition("%")[0] for *_, address in found]
        if not all(self._hosts.allow_address(target.scheme, each, port) for each in addresses):
            raise Refused(
                "the host has an address that is not public; an operator may list the address in "
                "--image-hosts"
            )
        return addresses[0]

    async def _file(self, response: httpx.Response, reservation: Reservation) -> bytes:
        """Return the body of a reply."""
        if response.status_code != 200:
            raise Refused(f"the host answers {response.status_code}")
        if not response.headers.get("content-type", "").lower().startswith(ACCEPTED):
            raise Refused("the host answers with a content type other than image/…")
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused("the host answers with a compressed reply")
        too_large = Refused(f"the file has more than {self._max_bytes} bytes (--max-image-bytes)")
        declared = response.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            raise too_large
        file, reserved = bytearray(), RESERVED_BYTES
        async for part in response.aiter_raw():
            file += part
            if len(file) > self._max_bytes:
                raise too_large
            while len(file) > reserved:
                reservation.grow(RESERVED_BYTES)
                reserved += RESERVED_BYTES
        if not file:
            raise Refused("the file is empty")
        reservation.shrink(reserved - len(file))
        return bytes(file)


def _port(target: httpx.URL) -> int:
    return target.port or PORTS[target.scheme]
