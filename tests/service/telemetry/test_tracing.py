"""Spans, as a collector receives them."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from pydantic import ValidationError

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.inference.timings import Timings
from service.settings import Settings
from service.system.distribution import install_command
from service.telemetry import tracing
from service.telemetry.tracing import Tracing
from testing.process import run_python
from tests.service.collector import Collector, attributes, collecting
from tests.service.harness import CONFIG, AnsweringEngine, exchange, serving

pytestmark = pytest.mark.anyio

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
"""The example of https://www.w3.org/TR/trace-context/."""
STEPS = ["tokenise", "queue", "compute", "encode"]
BODY = {"inputs": ["a b", "c"], "outputs": ["pooled"]}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
def slow() -> FakeEngine:
    return FakeEngine(CONFIG, batch_seconds=0.05)


def servers(collector: Collector) -> list[Span]:
    return [span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]


def children(collector: Collector, parent: Span) -> list[Span]:
    found = [span for span in collector.spans if span.parent_span_id == parent.span_id]
    return sorted(found, key=lambda span: STEPS.index(span.name))


async def test_a_request_and_its_steps(
    collector: Collector, artifact: Artifact, slow: FakeEngine
) -> None:
    before = time.time_ns()
    async with serving(artifact, slow, otlp_endpoint=collector.url) as client:
        reply = await client.post("/encode", json=BODY, headers={"x-request-id": "one"})
    after = time.time_ns()
    assert reply.status_code == 200
    assert set(collector.paths) == {"/v1/traces"}
    (span,) = servers(collector)
    assert span.name == "POST /encode"
    assert span.parent_span_id == b""
    assert attributes(span) == {
        "http.request.method": "POST",
        "http.route": "/encode",
        "http.response.status_code": 200,
        "headscope.request_id": "one",
        "headscope.tokens": reply.json()["usage"]["tokens"],
    }
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert before <= span.start_time_unix_nano < span.end_time_unix_nano <= after

    steps = children(collector, span)
    assert [step.name for step in steps] == STEPS
    assert {step.trace_id for step in steps} == {span.trace_id}
    for one, other in pairwise(steps):
        assert one.end_time_unix_nano == other.start_time_unix_nano
    assert span.start_time_unix_nano <= steps[0].start_time_unix_nano
    assert steps[-1].end_time_unix_nano <= span.end_time_unix_nano
    compute = steps[2]
    seconds = (compute.end_time_unix_nano - compute.start_time_unix_nano) / 1e9
    assert seconds >= 0.05
    (resource,) = {str(request.resource_spans[0].resource) for request in collector.requests}
    assert '"service.name"' in resource
    assert '"headscope"' in resource


async def test_a_span_names_the_key_and_does_not_hold_it(
    collector: Collector, artifact: Artifact, slow: FakeEngine, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("search:secret-of-search\n")
    settings = {"keys_file": tmp_path / "keys", "api_keys": "nameless-secret"}
    async with serving(artifact, slow, otlp_endpoint=collector.url, **settings) as client:
        for key in ("secret-of-search", "nameless-secret", "wrong-secret"):
            await client.post("/encode", json=BODY, headers={"authorization": f"Bearer {key}"})
    assert [attributes(span).get("headscope.key") for span in servers(collector)] == [
        "search",
        "key 0",
        None,
    ]
    assert b"secret" not in b"".join(one.SerializeToString() for one in collector.requests)


@pytest.mark.parametrize("route", ["/encode", "/attention"])
async def test_both_routes_have_their_steps(
    collector: Collector, artifact: Artifact, slow: FakeEngine, route: str
) -> None:
    async with serving(artifact, slow, otlp_endpoint=f"{collector.url}/") as client:
        assert (await client.post(route, json={"inputs": "a b c"})).status_code == 200
    (span,) = servers(collector)
    assert span.name == f"POST {route}"
    assert [step.name for step in children(collector, span)] == STEPS


async def test_the_trace_of_the_caller_goes_on(
    collector: Collector, artifact: Artifact, slow: FakeEngine
) -> None:
    async with serving(artifact, slow, otlp_endpoint=collector.url) as client:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=secret"}
        await client.post("/encode", json=BODY, headers=headers)
    (span,) = servers(collector)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert {step.trace_id.hex() for step in collector.spans} == {TRACE}
    assert {step.trace_state for step in collector.spans} == {""}


async def test_a_trace_that_its_caller_does_not_record(
    collector: Collector, artifact: Artifact, slow: FakeEngine
) -> None:
    async with serving(artifact, slow, otlp_endpoint=collector.url) as client:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        assert (await client.post("/encode", json=BODY, headers=headers)).status_code == 200
    assert collector.spans == []


@pytest.mark.parametrize("header", ["", "00-0-0-01", f"00-{TRACE}-{PARENT}", "é" * 1000])
async def test_a_traceparent_that_is_none_begins_a_trace(
    collector: Collector, artifact: Artifact, slow: FakeEngine, header: str
) -> None:
    async with serving(artifact, slow, otlp_endpoint=collector.url) as client:
        headers = {"traceparent": header.encode()}
        assert (await client.post("/encode", json=BODY, headers=headers)).status_code == 200
    (span,) = servers(collector)
    assert span.parent_span_id == b""
    assert span.trace_id.hex() != TRACE


async def test_what_fails_says_how(collector: Collector, artifact: Artifact) -> None:
    engine = AnsweringEngine(lambda _: [])
    async with serving(artifact, engine, otlp_endpoint=collector.url) as client:
        await client.post("/encode", json=BODY)
        await client.get("/no/such/path?secret=1")
        await client.post("/encode", json={"inputs": 1})
        await client.request("BREW", "/encode")
    spans = servers(collector)
    assert [span.name for span in spans] == [
        "POST /encode",
        "GET",
        "POST /encode",
        "_OTHER /encode",
    ]
    codes = [attributes(span)["http.response.status_code"] for span in spans]
    assert codes == [500, 404, 422, 405]
    failed = [span.status.code == Status.STATUS_CODE_ERROR for span in spans]
    assert failed == [True, False, False, False]
    assert "http.route" not in attributes(spans[1])
    assert not any(children(collector, span) for span in spans)


async def test_a_collector_that_is_down_costs_a_line(
    artifact: Artifact, caplog: pytest.LogCaptureFixture
) -> None:
    tracing = Tracing("http://127.0.0.1:1")
    tracing.observe(exchange())
    tracing._provider.force_flush()
    tracing.observe(exchange())
    tracing._provider.force_flush()
    tracing.close()
    lines = [record for record in caplog.records if record.levelno >= logging.INFO]
    assert [(line.name, line.levelname) for line in lines] == [("headscope", "WARNING")]
    assert "the trace collector accepts no spans" in lines[0].message


async def test_a_collector_that_hangs_keeps_nobody(
    artifact: Artifact, slow: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shutdown waits for 0.2 s, where the library would wait for the batch, or for 30 s."""
    monkeypatch.setattr("service.telemetry.tracing.SEND_SECONDS", 60)
    monkeypatch.setattr("service.telemetry.tracing.FLUSH_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with serving(artifact, slow, otlp_endpoint=endpoint) as client:
            for _ in range(3):
                assert (await client.post("/encode", json=BODY)).status_code == 200
            started = time.monotonic()
        assert time.monotonic() - started < 25
        connection, _ = silent.accept()
        with connection:  # it was asked, and answers when nobody waits any more
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\n"
MEBIBYTE = b"x" * 2**20
CHUNK = b"100000\r\n" + MEBIBYTE + b"\r\n"


@pytest.mark.parametrize(
    ("first", "again", "lost"),
    [
        (HEAD + b"\r\n", MEBIBYTE, False),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n", CHUNK, False),
        (HEAD + b"content-length: %d\r\n\r\n" % 2**50, MEBIBYTE, False),
        (HEAD + b"content-length: 9\r\n\r\n", b"", False),
        (b"HTTP/1.1 500 No\r\n\r\n", MEBIBYTE, True),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", True),
        (HEAD + b"x: ", b"x", True),
        (b"", b"x", True),
    ],
)
async def test_a_reply_without_end_costs_a_line(
    first: bytes, again: bytes, lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Bodies are not read, and a head that does not end is cut: the connection closes."""
    sent = 0

    def serve() -> None:
        nonlocal sent
        with contextlib.suppress(OSError):  # the library tries once more
            while True:
                connection, _ = server.accept()
                # one that is given up may stay open until it is collected as garbage
                connection.settimeout(5)
                with connection, contextlib.suppress(ConnectionError, TimeoutError):
                    connection.recv(65536)
                    connection.sendall(first)
                    while again:
                        connection.sendall(again)
                        sent += len(again)
                        time.sleep(0.05 if len(again) == 1 else 0)
                    connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        tracing = Tracing(f"http://127.0.0.1:{server.getsockname()[1]}")
        tracing.observe(exchange())
        assert tracing._provider.force_flush()
        tracing.close()
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        assert not thread.is_alive()
    assert sent < 64 * 2**20, "the system buffers some of it on both sides"
    lines = [record for record in caplog.records if record.levelno >= logging.INFO]
    assert len(lines) == lost


WITHOUT = """
import sys
for name in ("opentelemetry.exporter", "opentelemetry.sdk"):
    sys.modules[name] = None
from service.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_without_its_packages_it_does_not_start(artifact: Artifact) -> None:
    arguments = ["serve", "--artifact", str(artifact.folder), "--engine", "fake", "--port", "0"]
    done = run_python("-c", WITHOUT, *arguments, "--otlp-endpoint", "http://127.0.0.1:1")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("headscope serve: --otlp-endpoint needs opentelemetry.")
    assert line.endswith(install_command("tracing"))


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://localhost", "http://", ""])
def test_an_endpoint_that_is_none(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="otlp_endpoint"):
        Settings(otlp_endpoint=endpoint)


@pytest.mark.slow
def test_who_asks_for_no_traces_loads_nothing_for_them() -> None:
    program = "import sys, service.process.server; print('opentelemetry.sdk' in sys.modules)"
    assert run_python("-c", program).stdout == "False\n"


def test_no_step_ends_after_the_reply_began() -> None:
    timings = Timings(3, 1.0, 0.1, 0.3, 0.2)  # as clocks of two processors may have it
    found = exchange()
    found.replied, found.timings = 1.5, timings
    steps = tracing._steps(found)
    assert [name for name, *_ in steps] == STEPS
    assert max(ended for *_, ended in steps) == 1.5
    assert all(began <= ended for _, began, ended in steps)
