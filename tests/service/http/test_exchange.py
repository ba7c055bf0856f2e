"""Handling of every request: id, timing, body, unexpected exceptions, disconnects, and CORS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import copy_context
from typing import Any

import httpx
import pytest
from tokenizers import pre_tokenizers

from model.artifact.manifest import Artifact
from service.api.dialects import error_reply
from service.app import create_app
from service.engines.contract import MapsTask, Task
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.errors import EngineFailed
from service.http.admission import Admission
from service.http.exchange import ENDINGS, ExchangeMiddleware
from service.inference.timings import HEADERS
from service.models.state import state_of
from service.settings import Settings
from tests.service.harness import (
    CONFIG,
    AnsweringEngine,
    Client,
    GatedEngine,
    assert_problem,
    bare_service,
    exchange,
    listening,
    serving,
    until,
)
from tests.service.http.conftest import ORIGIN
from tests.service.http.wire import counted
from tests.service.logged import logged

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("status", [200, 422])
async def test_a_tame_request_id_comes_back_and_others_are_replaced(
    client: httpx.AsyncClient, status: int
) -> None:
    async def answered(given: bytes) -> str:
        body, headers = {"inputs": "a" if status == 200 else 1}, {b"x-request-id": given}
        reply = await client.post("/encode", json=body, headers=headers)
        assert reply.status_code == status
        if status != 200:
            assert assert_problem(reply, 422)["request_id"] == reply.headers["x-request-id"]
        return reply.headers["x-request-id"]

    for given in (b"a", b"0123456789abcdef" * 8, b"A.b_c:d/e+f=g@h-1", b"01J9Z3-ZX"):
        assert await answered(given) == given.decode()
    harmful = [
        b"",
        b" ",
        b"a b",
        b"x" * 129,
        b"<script>",
        b'"',
        b"a,b",
        b"\xc3\xa9",
        b"a\tb",
        b"%0d",
    ]
    replaced = {await answered(given) for given in [*harmful, *harmful]}
    assert len(replaced) == 2 * len(harmful)
    assert all(len(own) == 32 and int(own, 16) for own in replaced)


def panic(*_: object) -> None:
    """Panic in Rust, which pyo3 raises as a class that is not an `Exception`."""
    pre_tokenizers.FixedLength(length=0).pre_tokenize_str("Kanarienvogel")


def fail(*_: object) -> None:
    raise ZeroDivisionError("Kanarienvogel")


@pytest.mark.parametrize(
    ("broken", "kind"),
    [(panic, "pyo3_runtime.PanicException"), (fail, "builtins.ZeroDivisionError")],
)
@pytest.mark.parametrize("inputs", ["Kanarienvogel", ["Kanarienvogel", "b"]])
def test_what_nobody_foresaw_is_a_problem_too(
    artifact: Artifact,
    monkeypatch: pytest.MonkeyPatch,
    inputs: str | list[str],
    broken: Callable[..., None],
    kind: str,
) -> None:
    with logged() as log, listening(artifact, FakeEngine(CONFIG)) as (app, port):
        url, asked = f"http://127.0.0.1:{port}/encode", {"inputs": inputs}
        with monkeypatch.context() as patch:
            patch.setattr(state_of(app).models.default.inference.tokenizer, "tokenize", broken)
            reply = httpx.post(url, json=asked)
        assert_problem(reply, 500, says="something went wrong", error_type="Backend")
        assert reply.headers["x-total-time"].isdecimal()
        assert httpx.post(url, json=asked).status_code == 200
        for status in ("200", "500"):
            assert counted(app, "headscope_requests_total", route="/encode", status=status) == 1
    (line,) = [line for line in log.objects if line["level"] in ("error", "critical")]
    assert [error["type"] for error in line["exception"]] == [kind]
    assert "detail" not in line["exception"][0]
    assert "Kanarienvogel" not in reply.text + log.text + log.json


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_ends_a_request_is_no_failure_of_it(ending: type[BaseException]) -> None:
    sent: list[Any] = []

    class Ending(Admission):
        def admit(self, exchange: Any) -> None:
            raise ending

    async def unused(*message: Any) -> Any:
        sent.append(message)

    layer = ExchangeMiddleware(
        app=unused,
        routes={},
        service=bare_service(),
        admission=Ending(None, None),
        error_reply=error_reply,
    )
    scope = {"type": "http", "path": "/", "headers": [], "method": "GET"}
    with pytest.raises(ending):
        copy_context().run(layer(scope, unused, unused).send, None)
    assert sent == []


class Connection:
    """Raw ASGI request whose client can disconnect."""

    def __init__(self, app: Any, path: str, *chunks: bytes) -> None:
        self.sent: list[Any] = []
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        for chunk in chunks:
            self._messages.put_nowait({"type": "http.request", "body": chunk, "more_body": True})
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        self.running = asyncio.create_task(app(scope, self._messages.get, self._send))

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    def complete(self) -> None:
        self._messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})

    def leave(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})


@pytest.fixture
async def gated(artifact: Artifact) -> AsyncIterator[tuple[Any, GatedEngine]]:
    """Yield an application whose engine computes only released batches."""
    engine = GatedEngine()
    app = create_app(Settings(), [artifact], [engine])
    async with app.router.lifespan_context(app):
        yield app, engine
        engine.let_through()


def body(*texts: str) -> bytes:
    return json.dumps({"inputs": list(texts), "outputs": ["pooled"]}).encode()


@pytest.mark.parametrize("route", ["/encode", "/attention"])
async def test_who_leaves_the_queue_is_not_computed(
    gated: tuple[Any, GatedEngine], route: str
) -> None:
    app, engine = gated
    lane = state_of(app).models.default.inference.engines.default.lanes[route[1:]]
    first = Connection(app, "/encode", body("a"))
    first.complete()
    await until(lambda: engine.batches == [[3]])
    texts = b'{"inputs": ["a b", "a b c"]}'
    leaving, staying = (Connection(app, route, texts[:9], texts[9:]) for _ in range(2))
    leaving.complete()
    staying.complete()
    await until(lambda: lane.queued_tokens == 2 * (4 + 5))
    leaving.leave()
    await leaving.running
    assert leaving.sent == []
    assert lane.queued_tokens == 4 + 5
    assert counted(app, "headscope_client_disconnects_total") == 1
    assert counted(app, "headscope_dropped_texts_total", lane=route[1:], model="small") == 2
    engine.let_through()
    await asyncio.gather(first.running, staying.running)
    assert first.sent[0]["status"] == staying.sent[0]["status"] == 200
    maps = [4, 5] * 2 if route == "/attention" else []  # of each of the two layers
    computed = sorted(length for batch in engine.batches for length in batch)
    assert computed == sorted([3, 4, 5, *maps])
    assert counted(app, "headscope_client_disconnects_total") == 1


async def test_who_leaves_while_computed_or_before_the_body_is_complete_is_not_answered(
    gated: tuple[Any, GatedEngine],
) -> None:
    app, engine = gated
    early = Connection(app, "/encode", body("a")[:10])
    early.leave()
    await early.running
    assert engine.batches == []
    assert counted(app, "headscope_client_disconnects_total") == 1
    leaving = Connection(app, "/encode", body("a"))
    leaving.complete()
    await until(lambda: engine.batches)
    leaving.leave()
    await leaving.running
    engine.let_through()
    staying = Connection(app, "/encode", body("a"))
    staying.complete()
    await staying.running
    assert early.sent == leaving.sent == []
    kinds = [message["type"] for message in staying.sent]
    assert kinds == ["http.response.start", "http.response.body"]
    assert counted(app, "headscope_dropped_texts_total", lane="encode", model="small") == 0


def test_a_reply_that_fails_after_its_head_keeps_its_status(
    artifact: Artifact, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_late(tasks: Sequence[Task]) -> None:
        if any(isinstance(task, MapsTask) and task.tokens > 302 for task in tasks):
            raise EngineFailed("this text fails")

    texts = ["a " * (298 + n) for n in range(5)]
    engine, broken = AnsweringEngine(fail_late), pytest.raises(httpx.RemoteProtocolError)
    with listening(artifact, engine) as (app, port), broken:
        httpx.post(f"http://127.0.0.1:{port}/attention", json={"inputs": texts})
    assert counted(app, "headscope_requests_total", route="/attention", status="200") == 1
    errors = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert {*errors} == {EngineFailed}


JSON = {"content-type": "application/json"}


def held(app: Any) -> int:
    return state_of(app).bodies.held


@pytest.fixture
async def bounded(artifact: Artifact) -> AsyncIterator[Client]:
    """Yield a client with 100 bytes of bodies at once, of a service with a gated engine."""
    engine = GatedEngine()
    settings = Settings(max_body_bytes=1000, max_body_bytes_in_flight=100)
    app = create_app(settings, [artifact], [engine])
    async with app.router.lifespan_context(app), Client(app) as client:
        client.engine = engine  # type: ignore[attr-defined]
        yield client
        engine.let_through()


def padded(size: int) -> bytes:
    text = b'{"inputs": "a"'
    return text + b" " * (size - len(text) - 1) + b"}"


async def in_parts(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_a_body_counts_until_its_request_is_answered(bounded: Client) -> None:
    engine: GatedEngine = bounded.engine  # type: ignore[attr-defined]
    first = asyncio.create_task(bounded.post("/encode", content=padded(60), headers=JSON))
    await until(lambda: engine.batches)
    assert held(bounded.app) == 60
    for content in (padded(41), in_parts(padded(60)[:30], padded(60)[30:])):
        refused = await bounded.post("/encode", content=content, headers=JSON)
        assert_problem(refused, 429, "of 100 bytes", "Overloaded")
        assert held(bounded.app) == 60
    second = asyncio.create_task(bounded.post("/encode", content=padded(40), headers=JSON))
    await until(lambda: held(bounded.app) == 100)
    engine.let_through()
    assert [reply.status_code for reply in await asyncio.gather(first, second)] == [200, 200]
    assert held(bounded.app) == 0


async def test_one_alone_always_may(bounded: Client) -> None:
    bounded.engine.let_through()  # type: ignore[attr-defined]
    for content in (
        padded(1000),
        in_parts(padded(1000)[:90], padded(1000)[90:500], padded(1000)[500:]),
    ):
        reply = await bounded.post("/encode", content=content, headers=JSON)
        assert reply.status_code == 200
    assert held(bounded.app) == 0


async def test_what_is_refused_early_ends_the_connection(bounded: Client) -> None:
    refused = await bounded.post("/encode", content=padded(1001), headers=JSON)
    assert refused.headers["connection"] == "close"
    assert held(bounded.app) == 0
    wrong = await bounded.post("/encode", content=b"[", headers=JSON)
    assert wrong.status_code == 400
    assert "connection" not in wrong.headers


async def test_a_body_that_does_not_come_is_not_waited_for(artifact: Artifact) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    settings = Settings(client_timeout_seconds=0.05)
    app = create_app(settings, [artifact], [FakeEngine(CONFIG)])
    async with app.router.lifespan_context(app), Client(app) as client:
        late = await client.post("/encode", content=slow(), headers=JSON)
        problem = assert_problem(late, 408, "within 0.05 seconds")
        assert problem["type"] == "/problems/request-timeout"
        assert problem["retryable"]
        assert late.headers["connection"] == "close"
        assert held(app) == 0
        assert (await client.post("/encode", json={"inputs": "a"})).status_code == 200


async def test_a_body_that_came_with_its_head_is_not_waited_for(artifact: Artifact) -> None:
    sent: list[Any] = []

    async def unread() -> Any:
        raise AssertionError("the server has received the whole body")

    async def send(message: Any) -> None:
        sent.append(message)

    app = create_app(Settings(), [artifact], [FakeEngine(CONFIG)])
    scope = exchange(path="/encode", headers=[(b"content-type", b"application/json")]).scope
    scope |= {"method": "POST", "whole_body": padded(20), "on_disconnect": None}
    async with app.router.lifespan_context(app):
        await app(scope, unread, send)
    assert sent[0]["status"] == 200
    assert "whole_body" not in scope, "so that its reader can free it"


CORS = "access-control-allow-origin"


@pytest.mark.parametrize(
    ("origin", "method", "header", "status"),
    [
        (ORIGIN, "POST", "authorization, content-type, x-request-id, x-request-timeout-ms", 200),
        ("https://evil.example", "POST", "accept", 400),
        ("null", "POST", "accept", 400),
        (ORIGIN + ".evil.example", "POST", "accept", 400),
        (ORIGIN, "DELETE", "accept", 400),
        (ORIGIN, "POST", "x-other", 400),
    ],
)
async def test_a_page_may_ask_before_it_has_a_key(
    guarded: Client, origin: str, method: str, header: str, status: int
) -> None:
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": header,
    }
    reply = await guarded.options("/encode", headers=headers)
    assert reply.status_code == status
    assert reply.headers.get(CORS) == (ORIGIN if origin == ORIGIN else None)
    assert reply.headers["access-control-allow-methods"] == "GET, POST"
    assert "access-control-allow-credentials" not in reply.headers
    assert "x-request-id" not in reply.headers  # as docs/api.md says
    if status == 200:
        allowed = reply.headers["access-control-allow-headers"].lower()
        assert set(header.split(", ")) <= set(allowed.split(", "))


@pytest.mark.parametrize(
    ("content", "key", "status"),
    [
        (b'{"inputs": "a"}', "old-key", 200),
        (b'{"inputs": "a"}', "wrong", 401),
        (b'{"inputs": 1}', "old-key", 422),
        (b"[", "old-key", 400),
        (b"x" * 1001, "old-key", 413),
    ],
)
async def test_a_page_can_read_every_reply(
    guarded: Client, content: bytes, key: str, status: int
) -> None:
    headers = {
        "authorization": f"Bearer {key}",
        "content-type": "application/json",
        "origin": ORIGIN,
    }
    reply = await guarded.post("/encode", content=content, headers=headers)
    assert reply.status_code == status
    assert reply.headers[CORS] == ORIGIN
    assert reply.headers["vary"] == "Origin"
    exposed = reply.headers["access-control-expose-headers"].split(", ")
    own = {"x-request-id", "retry-after", "x-total-time", "x-queue-time", "x-model"}
    assert own | {*HEADERS.values()} <= {*exposed}
    assert "access-control-allow-credentials" not in reply.headers
    headers["origin"] = "https://evil.example"
    assert CORS not in (await guarded.post("/encode", content=content, headers=headers)).headers


async def test_one_origin_of_several_is_a_whole_origin_and_a_star_is_any(
    guarded: Client, artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    headers = {"origin": "http://localhost:3000", "authorization": "Bearer old-key"}
    assert (await guarded.get("/info", headers=headers)).headers[CORS] == headers["origin"]
    headers["origin"] = "http://localhost:30001"
    assert CORS not in (await guarded.get("/info", headers=headers)).headers
    async with serving(artifact, onnx_engine, cors_origins="*") as client:
        assert (await client.get("/info", headers=headers)).headers[CORS] == "*"
