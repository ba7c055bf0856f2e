"""Requests are admitted by the host that they name (DNS rebinding), and by their API key."""

from __future__ import annotations

import asyncio
import base64
import itertools
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.errors import MisdirectedRequest
from service.http.admission import (
    MAX_BYTES,
    PAUSE_LINES,
    PAUSE_SECONDS,
    Admission,
    ApiKeys,
    allowed_hosts,
    digest_of,
    is_loopback,
    read_names,
)
from service.settings import Settings
from service.telemetry.requests import PROBE_PATHS
from tests.service.harness import CONFIG, Client, assert_problem, exchange, listening, serving
from tests.service.http.conftest import ORIGIN
from tests.service.http.wire import CLOSE, refusal, replies

pytestmark = pytest.mark.anyio
OWN = ["localhost", "127.0.0.1", "[::1]"]
OTHER_SPELLINGS = ["LocalHost", "localhost.", "localhost:8000", "LOCALHOST.:1", "127.0.0.1:80"]
IPV6 = ["[::1]:8000", "[0:0:0:0:0:0:0:1]", "[0000::0001]:1"]
OF_OTHERS = ["evil.example:8000", "localhost.evil.example", "localhost..", "127.0.0.2", "0.0.0.0"]
MALFORMED = ["[::1", "[::1]evil", "::1", "localhost:80:80", "", ":8000"]


def admitted(hosts: frozenset[str] | None, host: str | None) -> bool:
    headers = [(b"accept", b"*/*"), *([] if host is None else [(b"host", host.encode())])]
    try:
        Admission(hosts, None).admit(exchange(headers=headers))
    except MisdirectedRequest:
        return False
    return True


@pytest.mark.parametrize("host", [*OWN, *OTHER_SPELLINGS, *IPV6, None])
def test_this_machine_is_meant_however_it_is_written_or_if_no_host_is(host: str | None) -> None:
    assert admitted(allowed_hosts(None, "localhost"), host)


@pytest.mark.parametrize("host", [*OF_OTHERS, *MALFORMED])
def test_another_host_is_refused(host: str) -> None:
    assert not admitted(allowed_hosts(None, "localhost"), host)


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


async def test_it_is_a_problem_and_comes_before_the_key(artifact: Artifact) -> None:
    async with serving(artifact, FakeEngine(CONFIG), api_keys="k") as client:
        for path in ("/", "/info", "/health/live", "/health/ready", "/nowhere"):
            refused = await client.get(path, headers={"host": "evil.example"})
            assert_problem(refused, 421, says="allowed_hosts")
            assert "www-authenticate" not in refused.headers
        assert (await client.get("/health/live", headers={"host": "127.0.0.1:1"})).is_success
        assert (await client.get("/info")).status_code == 401
    async with serving(artifact, FakeEngine(CONFIG), host="0.0.0.0") as client:
        assert (await client.get("/info", headers={"host": "evil.example"})).is_success


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


CHALLENGES = ['Bearer realm="headscope"', 'Basic realm="headscope", charset="UTF-8"']
TEXT = {"inputs": "a"}


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def test_probes_are_open(guarded: Client) -> None:
    for path in PROBE_PATHS:
        assert (await guarded.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/"),
        ("GET", "/dashboard"),
        ("GET", "//dashboard/index.html"),
        ("GET", "/metrics"),
        ("GET", "/info"),
        ("GET", "/openapi.json"),
        ("GET", "/nowhere"),
        ("GET", "/health/"),
        ("GET", "/HEALTH"),
        ("GET", "/health/live/../../metrics"),
        ("OPTIONS", "/encode"),
        ("POST", "/encode"),
    ],
)
async def test_all_else_needs_a_key(guarded: Client, method: str, path: str) -> None:
    refused = await guarded.request(method, httpx.URL(guarded.base_url, raw_path=path.encode()))
    problem = assert_problem(refused, 401, says="Bearer")
    assert problem["type"] == "/problems/unauthorized"
    assert not problem["retryable"]
    assert refused.headers.get_list("www-authenticate") == CHALLENGES


@pytest.mark.parametrize("path", ["/", "/dashboard/index.html", "/dashboard/main.js"])
async def test_the_page_is_open_and_asks_for_the_key_itself(guarded: Client, path: str) -> None:
    assert (await guarded.get(path)).status_code == 200
    refused = await guarded.get("/info", headers={"x-requested-with": "XMLHttpRequest"})
    assert refused.headers.get_list("www-authenticate") == CHALLENGES[:1], "no browser's dialog"


@pytest.mark.parametrize(
    "authorization",
    [
        "Bearer old-key",
        "bearer n3w:key",
        "BEARER   old-key",
        basic("", "old-key"),
        basic("anyone", "n3w:key"),
        basic("any\u00f6ne", "old-key"),
    ],
)
async def test_any_of_the_keys_will_do(guarded: Client, authorization: str) -> None:
    headers = {"authorization": authorization}
    reply = await guarded.post("/encode", json=TEXT, headers=headers)
    assert reply.status_code == 200
    assert "www-authenticate" not in reply.headers
    assert (await guarded.get("/metrics", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "values",
    [
        [b""],
        [b"old-key"],
        [b"Bearer old-key2"],
        [b"Bearer old-key, n3w:key"],
        [b"Bearer\told-key"],
        [b"Bearer \xff\xfe"],
        [b"Bearer old-key", b"Bearer old-key"],
        [b"Bearer wrong", b"Bearer old-key"],
        [b"Bearer old-key" + b" " * 4096],
        [b"Basic !!!!"],
        [b"Basic b2xkLWtleQ=="],
        [b"Basic " + base64.b64encode(b"old-key:")],
        [b"Basic " + base64.b64encode(b"a:\xff\xfe")],
        [b"Basic " + base64.b64encode(b"a:old-key") + b"\xff"],
    ],
)
async def test_any_other_header_is_no_key(guarded: Client, values: list[bytes]) -> None:
    headers = [(b"authorization", value) for value in values]
    assert_problem(await guarded.get("/info", headers=headers), 401)
    assert_problem(await guarded.post("/encode", json=TEXT, headers=headers), 401)


async def test_the_key_is_looked_at_before_the_body(guarded: Client) -> None:
    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    refused = await guarded.post("/encode", content=never(), headers={"content-length": "9999"})
    assert_problem(refused, 401)
    assert refused.headers["connection"] == "close"
    assert "connection" not in (await guarded.get("/info")).headers


async def test_without_keys_none_is_needed(client: httpx.AsyncClient) -> None:
    headers = {"authorization": "Bearer whatever", "origin": ORIGIN}
    reply = await client.post("/encode", json=TEXT, headers=headers)
    assert reply.status_code == 200
    assert "access-control-allow-origin" not in reply.headers


def test_keys_are_never_shown() -> None:
    assert "c4n4ry" not in repr(Settings(api_keys="c4n4ry"))
    assert "c4n4ry" not in str(Settings(api_keys="c4n4ry"))


GOOD = "# of the search team\nsearch:s3cret:with:colons\n\n  jobs.nightly-1:0ther!\n"
KEYS = {digest_of(b"s3cret:with:colons"): "search", digest_of(b"0ther!"): "jobs.nightly-1"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(GOOD, encoding="utf-8")
    file.chmod(0o600)
    return file


def test_a_line_a_key(path: Path) -> None:
    assert read_names(path) == KEYS


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds no key"),
        (b"# nothing\n\n", "holds no key"),
        (b"a:1\ns3cret\n", "line 2: name:key is needed"),
        (b":s3cret\n", "line 1: name:key is needed"),
        (b"two words:s3cret\n", "line 1: name:key is needed"),
        (b"a:\n", "line 1: the key is empty"),
        (b"a:s3cret s3cret\n", "line 1: the key is empty, or not of printable"),
        (b"a:s3cret\nb:other\na:third\n", "line 3: this name or key stands"),
        (b"a:s3cret\nb:s3cret\n", "line 2: this name or key stands"),
        (b"a:\xff\n", "it is not UTF-8"),
    ],
)
def test_faults_are_told_by_line_and_never_the_key(path: Path, content: bytes, says: str) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=says) as refused:
        ApiKeys(None, path)
    assert "s3cret" not in str(refused.value)


def test_a_file_that_is_missing_large_or_none_is_refused_before_it_is_read(path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere cannot be read: No such file"):
        ApiKeys(None, path.with_name("nowhere"))
    with pytest.raises(ValueError, match="keys file /dev/zero is a pipe, device or folder"):
        ApiKeys(None, Path("/dev/zero"))
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ValueError, match="has 16777217 bytes, and at most 16777216 are read"):
        ApiKeys(None, path)


def test_another_file_in_its_place_is_read(path: Path, tmp_path: Path) -> None:
    """Kubernetes changes a mounted secret this way, and editors write files this way."""
    keys = ApiKeys(None, path)
    keys.refresh(path)
    assert keys.names == KEYS
    other = tmp_path / "other"
    other.write_text("new:key\n", encoding="utf-8")
    other.replace(path)
    keys.refresh(path)
    assert keys.names == {digest_of(b"key"): "new"}


def test_a_damaged_file_leaves_the_keys_from_before(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = ApiKeys(None, path)
    for content in ("s3cret\n", None):
        path.unlink() if content is None else path.write_text(content, encoding="utf-8")
        keys.refresh(path)
        keys.refresh(path)
        assert keys.names == KEYS
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert all(line.endswith("; the keys from before stay") for line in said)
    assert "s3cret" not in caplog.text


def write_keys(path: Path, count: int, word: str) -> None:
    lines = (f"name-{number}:{word}-{number}\n" for number in range(count))
    path.write_text("".join(lines), encoding="utf-8")


def test_a_file_is_read_in_time_that_grows_with_its_lines(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 times the keys take less than 160 times as long; a quadratic reader took 1,600 times."""
    monkeypatch.setattr("service.http.admission.PAUSE_SECONDS", 0.0)

    def seconds(count: int) -> float:
        began = time.thread_time()
        assert len(read_names(path)) == count
        return time.thread_time() - began

    least = []
    for count in (500, 20_000):
        write_keys(path, count, "s3cret")
        least.append(min(seconds(count) for _ in range(3)))
    assert least[1] < 160 * least[0]


def test_the_parser_pauses_for_the_event_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("service.http.admission.time.sleep", pauses.append)
    write_keys(path, 3 * PAUSE_LINES + 1, "s3cret")
    read_names(path)
    assert pauses == 3 * [PAUSE_SECONDS]


async def test_old_keys_hold_off_the_loop_until_new_ones_are_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread reads the file, so that neither requests nor the end of the service wait for it."""
    monkeypatch.setattr("service.http.admission.LOOK_SECONDS", 0.01)
    keys = ApiKeys(None, path)
    assert {thread.daemon for thread in threading.enumerate() if thread.name == "keys"} == {True}
    write_keys(path, 20_000, "new")

    def named(key: bytes) -> str:
        return keys.check({"path": "/health"}, {b"authorization": b"Bearer " + key})

    for _ in itertools.takewhile(lambda _: keys.names == KEYS, range(10_000)):
        assert named(b"0ther!") or keys.names != KEYS
        await asyncio.sleep(0.001)
    assert (named(b"0ther!"), named(b"new-19999")) == ("", "name-19999")


@pytest.mark.parametrize(("mode", "told"), [(0o640, False), (0o644, True)])
def test_a_file_that_everybody_reads_is_told(
    path: Path, mode: int, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path.chmod(mode)
    ApiKeys(None, path)
    assert ("can be read by every user" in caplog.text) is told
