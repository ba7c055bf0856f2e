"""Fetching of pictures from allowed hosts, within limits of time and size.

Fetches run in threads, each in an event loop of its own: a name that is resolved slowly, or a reply
that is decrypted, does not stop the service's loop, and a timeout ends even a reply that comes byte
by byte.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from service.errors import Unprocessable
from service.http.image_hosts import PORTS, ImageHosts

if TYPE_CHECKING:
    import httpx

MAX_REDIRECTS = 3
FETCHES = 8
"""Maximum number of fetches of a worker at a time; others wait."""
REDIRECTS = (301, 302, 303, 307, 308)
ACCEPTED = ("image/", "application/octet-stream")
"""Beginnings of the content types of replies with a picture; the second is of object stores."""
HEADERS = {"accept": "image/*", "accept-encoding": "identity", "user-agent": "headscope"}
_THREADS = ThreadPoolExecutor(FETCHES, "images")


@dataclass(frozen=True)
class FetchLimits:
    """Limits of one fetch."""

    max_bytes: int
    seconds: float
    """Maximum time, with redirects and the resolution of names."""


class Refused(Exception):
    """Reason for which a picture is not fetched, without the caller's data."""


async def fetch(url: str, field: str, hosts: ImageHosts, limits: FetchLimits) -> bytes:
    """Return the file at an address.

    Args:
        url: address of http or https.
        field: field of the request, for error messages.
        hosts: allowed hosts.
        limits: limits of the fetch.

    Raises:
        Unprocessable: the host is not allowed, leads to an address that is not public or elsewhere,
            does not answer with a picture in time, or the file is too large.

    """
    late = f"the host did not send the picture within {limits.seconds:g} seconds"
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(limits.seconds):  # also while it waits, or resolves a name
            return await loop.run_in_executor(_THREADS, _run, url, hosts, limits)
    except TimeoutError:
        raise Unprocessable(f"{field}: {late}") from None
    except Refused as error:
        raise Unprocessable(f"{field}: {error}") from None


def _run(url: str, hosts: ImageHosts, limits: FetchLimits) -> bytes:
    async def run() -> bytes:
        async with asyncio.timeout(limits.seconds):
            return await _fetch(url, hosts, limits.max_bytes)

    return asyncio.run(run())


async def _fetch(url: str, hosts: ImageHosts, max_bytes: int) -> bytes:
    """Return the file at an address, after redirects to the same host.

    Raises:
        Refused: see `fetch`.

    """
    import httpx  # noqa: PLC0415 - loaded by the first fetch

    target = checked(url, hosts)
    options = httpx.Limits(max_keepalive_connections=0)
    certificates = _certificates() if target.scheme == "https" else False
    async with httpx.AsyncClient(verify=certificates, trust_env=False, limits=options) as client:
        for _ in range(1 + MAX_REDIRECTS):
            address = resolved(target, hosts)
            request = client.build_request(
                "GET",
                target.copy_with(host=address),
                headers={**HEADERS, "host": target.netloc.decode("ascii")},
                extensions={"sni_hostname": target.raw_host.decode("ascii")},
                timeout=None,
            )
            try:
                response = await client.send(request, stream=True)
                try:
                    if response.status_code not in REDIRECTS:
                        return await _file(response, max_bytes)
                    target = redirected(target, response.headers, hosts)
                finally:
                    await response.aclose()
            except httpx.HTTPError as error:
                raise Refused(f"the host did not answer ({type(error).__name__})") from None
    raise Refused(f"the host redirects more than {MAX_REDIRECTS} times")


def checked(url: str, hosts: ImageHosts) -> httpx.URL:
    """Return the parts of an address, if its host is allowed.

    Raises:
        Refused: the address is malformed, has a password, or its host is not allowed.

    """
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


def resolved(target: httpx.URL, hosts: ImageHosts) -> str:
    """Return the address of a host to which the connection goes, by one look-up of its name.

    Raises:
        Refused: the name is unknown, or leads to an address that is not public or not listed.

    """
    name, port = target.raw_host.decode("ascii"), _port(target)
    try:
        found = socket.getaddrinfo(name.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Refused("the name of the host is unknown") from None
    addresses = [str(address[0]).partition("%")[0] for *_, address in found]
    if not all(hosts.allow_address(target.scheme, each, port) for each in addresses):
        raise Refused(
            "the host has an address that is not public; an operator may list the address in "
            "--image-hosts"
        )
    return addresses[0]


def redirected(target: httpx.URL, headers: Mapping[str, str], hosts: ImageHosts) -> httpx.URL:
    """Return the address to which a reply leads, if it is of the same host and as secure.

    Raises:
        Refused: the address is of another host, or not of https after https.

    """
    onward = checked(str(target.join(headers.get("location", ""))), hosts)
    if onward.raw_host != target.raw_host:
        raise Refused("the host redirects to another host: send the address there")
    if (target.scheme, onward.scheme) == ("https", "http"):
        raise Refused("the host redirects from https to http")
    return onward


async def _file(response: httpx.Response, max_bytes: int) -> bytes:
    """Return the body of a reply.

    Raises:
        Refused: the reply has no picture, or a file that is too large.

    """
    kind = response.headers.get("content-type", "").lower()
    if response.status_code != 200:
        raise Refused(f"the host answers {response.status_code}")
    if not kind.startswith(ACCEPTED):
        raise Refused("the host answers with a content type other than image/…")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused("the host answers with a compressed reply")
    declared = response.headers.get("content-length", "0")
    parts, size = [], int(declared) if declared.isdecimal() else 0
    if size <= max_bytes:
        size = 0
        async for part in response.aiter_raw():
            size += len(part)
            if size > max_bytes:
                break
            parts.append(part)
    if size > max_bytes:
        raise Refused(f"the file has more than {max_bytes} bytes (--max-image-bytes)")
    if not size:
        raise Refused("the file is empty")
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
