"""Pictures are fetched from allowed hosts alone, within limits; the hosts are local servers."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Any

import httpx
import pytest

from service.errors import DeadlinePassed, Overloaded, RequestTooLarge, Unprocessable
from service.http import image_fetch
from service.http.image_fetch import RESERVED_BYTES, ImageFetcher, ImageHosts, is_public
from service.system.budget import ByteBudget, Reservation
from tests.service.harness import until

pytestmark = pytest.mark.anyio
FILE = b"\x89PNG" + bytes(100)
LOOK_UP = socket.getaddrinfo
LARGE = 2**24


def reply(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    fields = {"content-length": str(len(body)), "content-type": "image/png"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ntransfer-encoding: chunked\r\n\r\n"
REPLIES = {
    "/file": reply(FILE),
    "/store": reply(FILE, content_type="application/octet-stream"),
    "/chunked": CHUNKED + b"4\r\n\x89PNG\r\n64\r\n" + bytes(100) + b"\r\n0\r\n\r\n",
    "/moved": reply(status="302 Found", location="/file"),
    "/loop": reply(status="307 Temporary Redirect", location="/loop"),
    "/away": reply(status="301 Moved", location="http://169.254.169.254/latest/meta-data"),
    "/elsewhere": reply(status="301 Moved", location="http://listed.example.org/file"),
    "/to-a-file": reply(status="302 Found", location="file:///etc/passwd"),
    "/page": reply(b"<html>", content_type="text/html"),
    "/missing": reply(status="404 Not Found"),
    "/zipped": reply(FILE, content_encoding="gzip"),
    "/empty": reply(),
    "/declared": reply(b"", content_length="1001"),
    "/endless": CHUNKED + b"ffffffff\r\n" + bytes(100_000),
    "/broken": reply(FILE, content_length="500"),
    "/not-http": b"SSH-2.0-OpenSSH\r\n",
    "/silent": b"",
    "/slow-head": b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\nx: ",
    "/slow-body": CHUNKED,
    "/large": reply(bytes(2**20)),
    "/declared-only": reply(b"", content_length=str(2**20)),
}
"""Reply of the server by path."""
SLOW = {"/silent": b"", "/slow-head": b"x", "/slow-body": b"1\r\nx\r\n", "/declared-only": b""}
"""Bytes that follow now and then, without an end."""


class Host:
    """Server of `REPLIES` on a free port of 127.0.0.1."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fetcher(self, max_bytes: int = 1000, seconds: float = 30) -> ImageFetcher:
        """Return fetches of which this host is allowed, and another name."""
        return ImageFetcher(f"127.0.0.1:{self.port}, listed.example.org", max_bytes, seconds)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head)
            path = head.split()[1].decode()
            writer.write(REPLIES[path])
            gone = asyncio.gather(reader.read(), return_exceptions=True)  # possibly a reset
            while path in SLOW and not gone.done():
                writer.write(SLOW[path])
                await asyncio.wait([gone], timeout=0.02)
        finally:
            writer.close()


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    server = await asyncio.start_server(host.answer, "127.0.0.1", 0)
    host.port = server.sockets[0].getsockname()[1]
    yield host
    server.close()


async def fetched(
    fetches: Host | ImageFetcher,
    url: str,
    client: str = "a",
    deadline: float = math.inf,
    reservation: Reservation | None = None,
) -> bytes:
    """Return the file at an address, or at a path of a host, which is allowed then."""
    if isinstance(fetches, Host):
        url, fetches = fetches.url + url, fetches.fetcher()
    memory = reservation or Reservation(ByteBudget(2**30))
    return await fetches.fetch(url, "inputs[0].image_url", client, deadline, memory)


@pytest.mark.parametrize("path", ["/file", "/store", "/chunked", "/moved"])
async def test_a_file_of_an_allowed_host(host: Host, path: str) -> None:
    assert await fetched(host, path) == FILE
    assert b"\r\nhost: 127.0.0.1:%d\r\n" % host.port in host.requests[0].lower()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/loop", "redirects more than 3 times"),
        ("/away", "does not fetch pictures from that host"),
        ("/elsewhere", "redirects to another host"),
        ("/to-a-file", "an address of http or https"),
        ("/page", "content type other than image"),
        ("/missing", "the host answers 404"),
        ("/zipped", "compressed reply"),
        ("/empty", "the file is empty"),
        ("/declared", r"more than 1000 bytes \(--max-image-bytes\)"),
        ("/endless", r"more than 1000 bytes \(--max-image-bytes\)"),
        ("/broken", "did not answer"),
        ("/not-http", "did not answer"),
    ],
)
async def test_other_replies_are_refused(host: Host, path: str, says: str) -> None:
    with pytest.raises(Unprocessable, match=rf"inputs\[0\]\.image_url: .*{says}"):
        await fetched(host, path)


@pytest.mark.parametrize("path", ["/silent", "/slow-head", "/slow-body"])
async def test_a_slow_host_is_left_in_time(host: Host, path: str) -> None:
    began = time.monotonic()
    with pytest.raises(Unprocessable, match=r"within 0\.2 seconds"):
        await fetched(host.fetcher(10**6, 0.2), host.url + path)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.2:{}/file", "does not fetch pictures from that host and port"),
        ("http://127.0.0.1/file", "does not fetch pictures from that host and port"),
        ("http://user:password@127.0.0.1:{}/file", "without a user name"),
        ("http://localhost:{}/file", "an address that is not public"),
        ("http://unknown.invalid:{}/file", "the name of the host is unknown"),
        ("http://[::1/file", "an address of http or https"),
        ("ftp://127.0.0.1:{}/file", "an address of http or https"),
    ],
)
async def test_other_addresses_are_not_asked(
    host: Host, url: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names(monkeypatch, localhost=["127.0.0.3"])
    hosts = f"127.0.0.1:{host.port}, localhost:{host.port}, unknown.invalid:{host.port}"
    with pytest.raises(Unprocessable, match=says) as refused:
        await fetched(ImageFetcher(hosts, 1000, 30), url.format(host.port))
    assert host.requests == []
    assert "127.0.0" not in refused.value.detail


def names(monkeypatch: pytest.MonkeyPatch, **known: list[str]) -> list[str]:
    """Replace the look-up of names: the last address of a name stays; return the names asked."""
    asked: list[str] = []

    def answer(name: str, port: int, **options: Any) -> list[Any]:
        key = name.replace(".", "_")
        if key not in known:
            raise socket.gaierror("unknown")
        asked.append(name)
        addresses = known[key]
        address = addresses.pop(0) if len(addresses) > 1 else addresses[0]
        return LOOK_UP(address, port, **options)

    monkeypatch.setattr(image_fetch.socket, "getaddrinfo", answer)
    return asked


async def test_a_name_is_resolved_once_for_each_request(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection goes to the address that was checked, however the name changes later."""
    fetcher = ImageFetcher(f"*.example.org:{host.port}, 127.0.0.1:{host.port}", 1000, 30)
    asked = names(monkeypatch, a_example_org=["127.0.0.1", "127.0.0.9"])
    url = f"http://a.example.org:{host.port}"
    assert await fetched(fetcher, f"{url}/file") == FILE
    assert asked == ["a.example.org"]
    assert b"\r\nhost: a.example.org:%d\r\n" % host.port in host.requests[0].lower()
    names(monkeypatch, a_example_org=["127.0.0.1", "127.0.0.9"])
    with pytest.raises(Unprocessable, match="an address that is not public"):
        await fetched(fetcher, f"{url}/moved")
    assert len(host.requests) == 2


async def test_a_certificate_is_checked_for_the_name_and_not_for_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[httpx.Request] = []

    async def send(_: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        sent.append(request)
        kind = {"content-type": "image/png"}
        return httpx.Response(200, headers=kind, stream=httpx.ByteStream(FILE))

    names(monkeypatch, a_example_org=["93.184.215.14"])
    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", send)
    fetcher = ImageFetcher("a.example.org", 1000, 30)
    assert await fetched(fetcher, "https://a.example.org/a.png?b=c#d") == FILE
    (request,) = sent
    assert str(request.url) == "https://93.184.215.14/a.png?b=c"
    assert request.extensions["sni_hostname"] == request.headers["host"] == "a.example.org"


async def test_a_slow_host_of_a_client_costs_others_neither_turns_nor_memory(host: Host) -> None:
    budget, fetcher = ByteBudget(2**24), host.fetcher(LARGE)
    slow = [
        asyncio.create_task(
            fetched(fetcher, host.url + path, client, reservation=Reservation(budget)),
        )
        for client in ("a", "b")
        for path in ["/silent", "/slow-body", "/declared-only", "/slow-head"] * 10
    ]
    await until(lambda: len(host.requests) == 12)
    assert fetcher.running == {"a": 8, "b": 4}
    assert budget.held <= 16 * RESERVED_BYTES
    began, own = time.monotonic(), Reservation(budget)
    assert await fetched(fetcher, f"{host.url}/file", "c", reservation=own) == FILE
    assert time.monotonic() - began < 10  # the slow ones take 30 seconds
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


async def test_bytes_are_reserved_as_they_arrive(host: Host) -> None:
    fetcher, url = host.fetcher(LARGE), f"{host.url}/large"
    enough = Reservation(ByteBudget(2**20))
    assert len(await fetched(fetcher, url, reservation=enough)) == enough.size == 2**20
    with pytest.raises(RequestTooLarge):
        await fetched(fetcher, url, reservation=Reservation(ByteBudget(2**20 - 1)))
    budget = ByteBudget(2**20)
    other = Reservation(budget)
    other.grow(2**18 + 1)
    with pytest.raises(Overloaded):
        await fetched(fetcher, url, reservation=Reservation(budget))
    assert not fetcher.running


async def test_a_request_that_has_ended_reserves_nothing_more(host: Host) -> None:
    reservation = Reservation(budget := ByteBudget(2**24))
    task = asyncio.create_task(fetched(host, "/slow-body", reservation=reservation))
    await until(lambda: host.requests != [])
    task.cancel()
    await asyncio.wait([task])
    reservation.release()
    await asyncio.sleep(0.1)
    assert budget.held == 0


async def test_who_waits_to_begin_waits_until_the_deadline(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_fetch, "FETCHES", 1)
    fetcher = host.fetcher()
    slow = asyncio.create_task(fetched(fetcher, f"{host.url}/silent"))
    await until(lambda: host.requests)
    for left in (-1.0, 0.1):
        with pytest.raises(DeadlinePassed, match="before all pictures were fetched"):
            await fetched(fetcher, f"{host.url}/file", deadline=time.monotonic() + left)
    slow.cancel()
    await asyncio.wait([slow])
    assert len(host.requests) == 1
    assert await fetched(fetcher, f"{host.url}/file") == FILE


async def test_a_look_up_that_goes_on_counts_as_a_fetch(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that slow names of a client do not take the threads of all others."""
    released = threading.Event()
    monkeypatch.setattr(
        image_fetch.socket, "getaddrinfo", lambda *_, **__: released.wait(60) and []
    )
    fetcher = host.fetcher(seconds=0.05)
    with pytest.raises(Unprocessable, match=r"within 0\.05 seconds"):
        await fetched(fetcher, f"{host.url}/file")
    assert fetcher.running == {"a": 1}
    released.set()
    await until(lambda: not fetcher.running)


HOSTS = ImageHosts("images.example.org, *.Example.com:8443, 10.0.0.5, [fd00:0::1]:8080")
LISTED = [
    ("https", "images.example.org", 443),
    ("http", "IMAGES.example.org.", 80),
    ("https", "a.example.com", 8443),
    ("http", "a.b.EXAMPLE.com", 8443),
    ("http", "10.0.0.5", 80),
    ("http", "fd00::1", 8080),
]
NOT_LISTED = [
    ("http", "images.example.org", 443),
    ("https", "images.example.org", 8443),
    ("https", "a.images.example.org", 443),
    ("https", "example.com", 8443),
    ("https", "evilexample.com", 8443),
    ("https", "a.example.com", 443),
    ("https", "images.example.org.evil.net", 443),
    ("http", "10.0.0.6", 80),
    ("http", "fd00::1", 80),
    ("http", "10.5", 80),
    ("http", "167772165", 80),
]


@pytest.mark.parametrize("place", [*LISTED, *NOT_LISTED])
def test_listed_hosts_and_ports_are_allowed(place: tuple[str, str, int]) -> None:
    assert HOSTS.allow(*place) == (place in LISTED)


PUBLIC = "93.184.215.14 2606:4700::1111 64:ff9b::5db8:d70e"
SPECIAL = """
127.0.0.1 10.0.0.1 172.16.0.1 192.168.1.1 100.64.0.1 169.254.169.254 0.0.0.0 224.0.0.1 239.1.2.3
255.255.255.255 ::1 :: fe80::1 fd00:ec2::254 ff02::1 ff0e::1 ::ffff:127.0.0.1
::ffff:169.254.169.254 64:ff9b::7f00:1 2002:7f00:1:: 2001:0:7f00:1::
"""
"""Addresses of RFC 6890's registries, of multicast, and of IPv4 inside IPv6."""


@pytest.mark.parametrize("address", f"{PUBLIC} {SPECIAL}".split())
def test_addresses_are_public_or_listed_themselves(address: str) -> None:
    public = address in PUBLIC.split()
    assert is_public(ip_address(address)) == HOSTS.allow_address("http", address, 80) == public


def test_a_private_address_is_listed_itself() -> None:
    assert HOSTS.allow_address("http", "10.0.0.5", 80)
    assert not HOSTS.allow_address("http", "10.0.0.5", 8080)
    assert HOSTS.allow_address("http", "fd00::1", 8080)
