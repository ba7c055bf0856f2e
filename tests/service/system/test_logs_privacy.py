"""A canary in every part of requests appears in no log, metric, span or error."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from model.artifact.manifest import Artifact
from service.app import create_app
from service.engines.contract import TextTask
from service.engines.process import TorchEngine
from service.errors import EngineFailed
from service.models.state import state_of
from service.process.listener import bound
from service.process.server import Server
from service.settings import Settings
from service.telemetry.tracing import Tracing
from testing.process import free_port
from tests.service.collector import Collector, attributes, collecting
from tests.service.harness import AnsweringEngine, serving, text
from tests.service.logged import Log, logged

CANARY = "Kanarienvogel"
"""Canary: text of requests that must not appear in any output except the reply."""
POISON = "a " * 150
"""Text over which the engine fails, with an error that quotes the batch."""


@dataclass
class Service:
    """Service, and all its output except replies."""

    app: FastAPI
    port: int
    log: Log
    collector: Collector

    @property
    def tracing(self) -> Tracing:
        observers = self.app.exchanging.keywords["observers"]  # type: ignore[attr-defined]
        (tracing,) = [one for one in observers if isinstance(one, Tracing)]
        return tracing

    def reported(self) -> str:
        assert self.tracing._provider.force_flush()
        spans = "\n".join(map(str, self.collector.requests))
        metrics = httpx.get(f"http://127.0.0.1:{self.port}/metrics").text
        return "\n".join((self.log.text, self.log.json, spans, metrics)).lower()

    def seen(self, request_id: str) -> tuple[list[tuple[int, str]], list[str | int]]:
        """Return status and route in the access log, and the route of the span, of a request.

        Both come after the reply, so that they are waited for.
        """
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self.tracing._provider.force_flush()
            own = [line for line in self.log.objects if line.get("request_id") == request_id]
            logged = [(line["status"], line["route"]) for line in own if "route" in line]
            spans = [attributes(span) for span in self.collector.spans]
            routes = [span["http.route"] for span in spans if request_id in span.values()]
            if logged and routes:
                break
        return logged, routes

    def send(self, request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile("rb") as reader:
                return reader.read()


def fail_over_poison(tasks: Any) -> None:
    if any(task.tokens > 150 for task in tasks):
        raise ValueError(CANARY)


@pytest.fixture(scope="module")
def service(artifact: Artifact) -> Iterator[Service]:
    """Run the shipped server with the most verbose log and with traces."""
    with logged() as log, collecting() as collector:
        port = free_port()
        settings = Settings(
            port=port, log_level="debug", access_log=True, otlp_endpoint=collector.url
        )
        app = create_app(settings, [artifact], [AnsweringEngine(fail_over_poison)])
        server = Server(app, settings)
        with bound("127.0.0.1", port) as sockets:
            thread = threading.Thread(target=server.run, args=[sockets])
            thread.start()
            try:
                while not server.started:
                    assert thread.is_alive()
                    thread.join(0.01)
                yield Service(app, port, log, collector)
            finally:
                server.should_exit = True
                thread.join(timeout=20)


LONG = f"{CANARY} " * 600
BODIES: list[tuple[str, int, dict[str, Any]]] = [
    ("a text", 200, {"inputs": CANARY}),
    ("a pair", 200, {"inputs": [[CANARY, CANARY]]}),
    ("a text that is too long", 422, {"inputs": LONG}),
    ("a text with too many letters", 422, {"inputs": CANARY * 3000}),
    ("a pair that is too long", 422, {"inputs": [["a", LONG]]}),
    ("a text of another type", 422, {"inputs": [CANARY, 1]}),
    ("a key", 422, {"inputs": {CANARY: CANARY}}),
    ("a prompt", 422, {"inputs": "a", "prompt_name": CANARY}),
    ("an unknown field", 422, {"inputs": "a", f"{CANARY} ": CANARY}),
    ("an unknown value", 422, {"inputs": "a", "backend": CANARY}),
    ("a number that is none", 422, {"inputs": "a", "layer": CANARY}),
    ("a list that is none", 422, {"inputs": "a", "outputs": [CANARY]}),
    ("a text that the engine fails over", 500, {"inputs": [CANARY, POISON]}),
]


@pytest.mark.parametrize(
    ("status", "body"), [row[1:] for row in BODIES], ids=[r[0] for r in BODIES]
)
@pytest.mark.parametrize("route", ["/encode", "/attention"])
def test_bodies(service: Service, route: str, status: int, body: dict[str, Any]) -> None:
    if route == "/attention" and "layer" in body:
        body = {"inputs": "a", "layers": [CANARY]}
    url, headers = f"http://127.0.0.1:{service.port}{route}", {"x-request-id": uuid.uuid4().hex}
    reply = httpx.post(url, json=body, headers=headers, timeout=60)
    assert reply.status_code == status
    if reply.status_code != 200:
        assert CANARY.lower() not in reply.text.lower()
    assert service.seen(headers["x-request-id"]) == ([(status, route)], [route])
    assert CANARY.lower() not in service.reported()


CONTENTS = [
    f'{{"inputs": "{CANARY}'.encode(),
    f'{{"inputs": "{CANARY}\\ud800"}}'.encode(),
    f'{{"inputs": ["{CANARY}", NaN]}}'.encode(),
    f'{{"inputs": "{CANARY}'.encode() + b'\xff"}',
    CANARY.encode(),
    f'"{CANARY}"'.encode(),
]


@pytest.mark.parametrize("content", CONTENTS)
def test_contents_that_are_no_request(service: Service, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    url = f"http://127.0.0.1:{service.port}/encode"
    reply = httpx.post(url, content=content, headers=headers)
    assert reply.status_code in (400, 422)
    assert CANARY.lower() not in reply.text.lower()
    assert CANARY.lower() not in service.reported()


GOOD = json.dumps({"inputs": "a b", "outputs": ["pooled"]})


def post(path: str = "/encode", *, method: str = "POST", **headers: str) -> bytes:
    lines = {
        "host": "localhost",
        "content-type": "application/json",
        "content-length": str(len(GOOD)),
        "connection": "close",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n{GOOD}".encode()


REQUESTS = {
    "a path": post(f"/{CANARY}"),
    "a path below a route": post(f"/encode/{CANARY}"),
    "an encoded path": post(f"/%4b{CANARY[1:]}"),
    "a file of the dashboard": post(f"/{CANARY}.js", method="GET"),
    "a query": post(f"/encode?text={CANARY}"),
    "a query of a page": post(f"/?text={CANARY}", method="GET"),
    "a method": post(method=CANARY.upper()),
    "a header": post(x_anything=CANARY),
    "a header's name": post(**{CANARY: "1"}),
    "a host": post(host=CANARY),
    "a cookie": post(cookie=f"a={CANARY}"),
    "a key": post(authorization=f"Bearer {CANARY}"),
    "a content type": post(content_type=f"text/{CANARY}"),
    "an encoding": post(content_encoding=CANARY),
    "a form": post(accept=f"application/{CANARY}"),
    "a time limit": post(x_request_timeout_ms=CANARY),
    "an id that is none": post(x_request_id=f"{CANARY} and more"),
    "a trace": post(traceparent=f"00-{CANARY}-01"),
    "a trace's state": post(traceparent=f"00-{'4' * 32}-{'2' * 16}-01", tracestate=f"a={CANARY}"),
    "baggage": post(baggage=f"a={CANARY}"),
    "an agent": post(user_agent=CANARY),
    "a length": post(content_length=CANARY),
    "a transfer coding": post(transfer_encoding=CANARY),
    "a protocol": post(upgrade=CANARY, connection="upgrade"),
    "an expectation": post(expect=CANARY),
    "no HTTP": f"{CANARY}\r\n\r\n".encode(),
    "half a body": post(content_length="1000") + CANARY.encode(),
}


@pytest.mark.parametrize("request_bytes", REQUESTS.values(), ids=REQUESTS)
def test_heads(service: Service, request_bytes: bytes) -> None:
    head, _, body = service.send(request_bytes).partition(b"\r\n\r\n")
    assert CANARY.lower() not in (head + body).decode(errors="replace").lower()
    assert CANARY.lower() not in service.reported()


def test_a_field_name_is_told_to_who_sent_it_alone(service: Service) -> None:
    """The reply names an unknown field, as it does for a spelling mistake; logs do not."""
    body = {"inputs": "a", CANARY: 1}
    reply = httpx.post(f"http://127.0.0.1:{service.port}/encode", json=body)
    assert f"{CANARY}: " in reply.json()["detail"]
    assert CANARY.lower() not in service.reported()


def test_an_id_is_the_callers_own(service: Service) -> None:
    service.send(post(x_request_id="the-callers-own"))
    service.seen("the-callers-own")
    assert service.reported().count("the-callers-own") == 3  # a line of each form, and a span


def test_an_error_that_nobody_foresaw(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError(CANARY)

    monkeypatch.setattr(state_of(service.app).models.default.inference, "encode", fail)
    reply = httpx.post(f"http://127.0.0.1:{service.port}/encode", json={"inputs": CANARY})
    assert reply.status_code == 500
    assert CANARY not in reply.text
    reported = service.reported()
    assert "exception in asgi application" in reported
    assert "builtins.runtimeerror" in reported
    assert CANARY.lower() not in reported


@pytest.mark.anyio
async def test_a_wrong_key(artifact: Artifact) -> None:
    engine = AnsweringEngine(lambda _: None)
    with logged() as log:
        async with serving(artifact, engine, api_keys="right", access_log=True) as client:
            for header in (f"Bearer {CANARY}", f"Basic {CANARY}", CANARY):
                headers = {"authorization": header}
                reply = await client.post("/encode", json={"inputs": "a"}, headers=headers)
                assert reply.status_code == 401
                assert CANARY not in reply.text
    assert "/encode 401" in log.text or "unmatched 401" in log.text
    assert CANARY not in log.text


@pytest.mark.slow
def test_the_real_pytorch_process(artifact: Artifact, capfd: pytest.CaptureFixture[str]) -> None:
    ids = np.array([10**9])
    with contextlib.closing(TorchEngine(artifact, timeout_seconds=30)) as engine:
        with pytest.raises(EngineFailed, match="PyTorch failed: IndexError"):
            engine.run([TextTask(ids, np.zeros_like(ids), hidden_layers=(0,))])
        assert len(engine.run([text(5)])) == 1
    errors = capfd.readouterr().err
    assert "error headscope: a batch failed\n    builtins.IndexError (service/" in errors
    assert "out of range" not in errors
