"""Requests under a foreign name of the service's address are refused (DNS rebinding)."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.errors import MisdirectedRequest
from service.http.admission import Admission, AllowedHosts, allowed_hosts, is_loopback
from tests.service.harness import CONFIG, assert_problem, exchange, listening, serving
from tests.service.http.wire import CLOSE, refusal, replies

OWN = ["localhost", "127.0.0.1", "[::1]"]
OTHER_SPELLINGS = ["LocalHost", "localhost.", "localhost:8000", "LOCALHOST.:1", "127.0.0.1:80"]
IPV6 = ["[::1]:8000", "[0:0:0:0:0:0:0:1]", "[0000::0001]:1"]
FOREIGN = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "evillocalhost",
    "localhost..",
    "127.0.0.1.evil.example",
    "127.0.0.2",
    "[::2]",
    "[::1",
    "[::1]evil",
    "::1",
    "localhost:80:80",
    "localhost:evil",
    "0.0.0.0",
    "",
    ":8000",
    "*",
]


def admitted(hosts: AllowedHosts, host: str | None) -> bool:
    headers = {b"accept": b"*/*"} | ({} if host is None else {b"host": host.encode()})
    try:
        hosts.check(headers)
    except MisdirectedRequest:
        return False
    return True


@pytest.mark.parametrize("host", OWN + OTHER_SPELLINGS + IPV6)
def test_this_machine_is_meant_however_it_is_written(host: str) -> None:
    assert admitted(AllowedHosts([]), host)


@pytest.mark.parametrize("host", FOREIGN)
def test_another_host_is_refused(host: str) -> None:
    assert not admitted(AllowedHosts([]), host)


def test_one_without_a_host_is_for_whoever_gets_it() -> None:
    assert admitted(AllowedHosts([]), None)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.0.2.1", False),
        ("fe80::1%1", False),
    ],
)
def test_it_is_on_where_only_this_machine_can_connect(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback
    assert (allowed_hosts(None, host) is not None) == loopback


def test_a_name_of_both_kinds_of_addresses_is_no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: Any, **__: Any) -> list[Any]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        return [(*kind, (address, 0)) for address in addresses]

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    addresses = ["127.0.1.1"]
    hosts = allowed_hosts(None, "My-Machine")
    assert hosts is not None
    assert admitted(hosts, "my-machine:8000")
    assert not admitted(hosts, "evil.example")
    addresses.append("192.0.2.1")
    assert allowed_hosts(None, "My-Machine") is None


def test_the_address_that_it_listens_on_is_its_own() -> None:
    for host, named in (("127.3.2.1", "127.3.2.1:80"), ("::1", "[::1]:80")):
        hosts = allowed_hosts(None, host)
        assert hosts is not None
        assert admitted(hosts, named)


@pytest.mark.parametrize("listening", ["0.0.0.0", "127.0.0.1"])
def test_the_setting_counts_wherever_it_listens(listening: str) -> None:
    assert allowed_hosts("*", listening) is None
    assert allowed_hosts("a.example, *", listening) is None
    hosts = allowed_hosts("a.example, [2001:db8::1]", listening)
    assert hosts is not None
    for host in ("A.example:443", "[2001:DB8:0::1]", *OWN):
        assert admitted(hosts, host), host
    assert not admitted(hosts, "b.example")


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/", "/info", "/health/live", "/health/ready", "/nowhere"])
async def test_it_is_a_problem_and_comes_before_the_key(artifact: Artifact, path: str) -> None:
    async with serving(artifact, FakeEngine(CONFIG), api_keys="k") as client:
        refused = await client.get(path, headers={"host": "evil.example"})
        assert_problem(refused, 421, says="allowed_hosts")
        assert "www-authenticate" not in refused.headers
        assert (await client.get("/health/live", headers={"host": "127.0.0.1:1"})).is_success
        assert (await client.get("/info")).status_code == 401
    async with serving(artifact, FakeEngine(CONFIG), host="0.0.0.0") as client:
        assert (await client.get("/info", headers={"host": "evil.example"})).is_success


@pytest.mark.anyio
async def test_a_page_of_an_origin_that_is_allowed_is_of_no_host_that_is(
    artifact: Artifact,
) -> None:
    origin = {"origin": "https://example.org", "host": "evil.example"}
    async with serving(artifact, FakeEngine(CONFIG), cors_origins="https://example.org") as client:
        assert_problem(await client.post("/encode", json={"inputs": "a"}, headers=origin), 421)


def test_over_a_socket(artifact: Artifact) -> None:
    """The host of the target counts where it names one, and HTTP/1.0 needs none."""
    live = b"GET /health/live HTTP/1.1\r\nHost: "
    whole = b"GET http://%s/health/live HTTP/1.1\r\nHost: %s\r\n"
    with listening(artifact, FakeEngine(CONFIG), allowed_hosts=None) as (_, port):
        for head in (
            live + b"localhost:%d\r\n" % port,
            live + b"[::1]\r\n",
            whole % (b"LOCALHOST:80", b"evil.example"),
        ):
            ((status, *_),) = replies(port, head + CLOSE)
            assert status == 200, head
        ((status, *_),) = replies(port, b"GET /health/live HTTP/1.0\r\n\r\n")
        assert status == 200
        for head in (
            live + b"evil.example\r\n",
            live + b"\r\n",
            live.replace(b"1.1", b"1.0") + b"evil.example\r\n",
            whole % (b"evil.example", b"localhost"),
        ):
            ((status, *_),) = replies(port, head + CLOSE)
            assert status == 421, head
        upload = b"POST /encode HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 9\r\n\r\n"
        assert refusal(port, upload)["type"] == "/problems/misdirected"


@pytest.mark.parametrize(("client", "name"), [(("192.0.2.7", 80), "192.0.2.7"), (None, "")])
def test_without_hosts_and_keys_everybody_is_an_address(
    client: tuple[str, int] | None, name: str
) -> None:
    found = exchange(path="/info", headers=[(b"host", b"evil.example")], client=client)
    Admission(None, None).admit(found)
    assert (found.client, found.key) == (name, "")
