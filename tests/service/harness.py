"""Shared helpers of the service's tests: controllable engines, texts, and applications."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from fastapi import FastAPI
from starlette.types import Message, Send

from model.artifact.decomposition import DecompositionStep
from model.artifact.manifest import Artifact
from model.config.encoder import EncoderConfig
from model.families.registry import parse_config
from service.api.wire.media import Part, Unwritten
from service.api.wire.route import ServiceExchange
from service.app import create_app
from service.engines.contract import (
    DecomposeTask,
    Engine,
    MapsTask,
    Output,
    Pooling,
    Task,
    TextTask,
)
from service.engines.fake import FakeEngine
from service.http.exchange import Turns
from service.inference.tokenization.text import ArrayText, places_of
from service.models.state import state_of
from service.process.listener import bound
from service.process.server import Server
from service.scheduler.lanes import BatchLimits, Event, LaneName
from service.scheduler.scheduler import Scheduler
from service.settings import Settings
from service.system.budget import ByteBudget, Reservation
from service.telemetry.metrics import Metrics

CONFIG = parse_config(
    {
        "model_type": "bert",
        "vocab_size": 1000,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
)
PROBLEM_MEMBERS = {
    "type",
    "title",
    "status",
    "detail",
    "error",
    "error_type",
    "retryable",
    "request_id",
}


class Recorder:
    """Observer that records its calls."""

    def __init__(self) -> None:
        self.finished: list[tuple[LaneName, list[int], float]] = []
        """Lane, lengths and seconds of each batch."""
        self.failed: list[LaneName] = []
        self.drops: list[LaneName] = []
        self.waits: list[tuple[LaneName, float]] = []
        self.inputs: list[tuple[list[int], dict[str, int]]] = []
        self.refusals: list[tuple[LaneName, str]] = []
        self.pictures: list[float] = []

    def tokenized(self, lengths: Sequence[int], warnings: Mapping[str, int]) -> None:
        self.inputs.append((list(lengths), dict(warnings)))

    def pictures_read(self, seconds: float) -> None:
        self.pictures.append(seconds)

    def batch_finished(self, lane: LaneName, tasks: Sequence[Task], seconds: float) -> None:
        self.finished.append((lane, [task.tokens for task in tasks], seconds))

    def waited(self, lane: LaneName, seconds: float) -> None:
        assert seconds >= 0
        self.waits.append((lane, seconds))

    def count(self, event: Event, *labels: Any) -> None:
        lists: dict[str, list[Any]] = {
            "failed_batches": self.failed,
            "dropped_texts": self.drops,
            "queue_refused": self.refusals,
            "engine_restarts": [],
        }
        lists[event].append(labels[0] if len(labels) == 1 else labels)


class GatedEngine(FakeEngine):
    """Engine that records its batches' lengths; each batch waits until the test releases it."""

    def __init__(self, concurrency: int = 1) -> None:
        super().__init__(CONFIG, concurrency=concurrency)
        self.batches: list[list[int]] = []
        self.closed = False
        self._gate = threading.Semaphore(0)

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        self.batches.append([task.tokens for task in tasks])
        assert self._gate.acquire(timeout=60), "the test never let this batch through"
        return super().run(tasks)

    def let_through(self, batches: int = 1000) -> None:
        self._gate.release(batches)

    def close(self) -> None:
        self.closed = True


class AnsweringEngine(FakeEngine):
    """Engine that returns a function's results, and counts its batches."""

    def __init__(
        self, answer: Callable[[Sequence[Task]], Any], config: EncoderConfig = CONFIG
    ) -> None:
        super().__init__(config)
        self.answer = answer
        self.batches = 0

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        self.batches += 1
        answer = self.answer(tasks)
        return answer if answer is not None else super().run(tasks)


def text(length: int, seed: int = 0, **asked: Any) -> TextTask:
    """Return the task of a text of random ids, by default for its mean vector."""
    ids = np.random.default_rng([seed, length]).integers(0, CONFIG.vocab_size, length)
    return TextTask(ids, np.zeros_like(ids), **(asked or {"pooling": Pooling(2, "mean")}))


def layer_maps(
    length: int, seed: int = 0, layer: int = 0, heads: tuple[int, ...] = (0, 1)
) -> MapsTask:
    """Return the task of maps over random hidden states."""
    shape = (length, CONFIG.hidden_size)
    hidden = np.random.default_rng([seed, length]).standard_normal(shape, np.float32)
    return MapsTask(hidden, hidden, layer, heads)


def decomposition(length: int = 4, rows: int = 2, layer: int = 0) -> DecomposeTask:
    """Return the task of a text's first rows through a layer, of parts that sum to their states."""
    rng = np.random.default_rng([length, rows])
    shares = rng.standard_normal((length, length, CONFIG.hidden_size), np.float32)
    parts = np.concatenate([shares.sum(axis=1, keepdims=True), shares], axis=1)
    values = rng.standard_normal((2, length, length, 4), np.float32)
    values = np.concatenate([values.sum(axis=2, keepdims=True), values], axis=2)
    step = DecompositionStep(parts[:rows], layer, 0, parts[:, 0].copy(), values)
    return DecomposeTask(step, 10, last=layer + 1 == CONFIG.num_hidden_layers)


def tokenized(length: int, seed: int = 0) -> ArrayText:
    """Return a text whose tokens need escaping."""
    rng = np.random.default_rng([seed, length] if seed else length)
    return ArrayText(
        tokens=[f'tökén "{n}" \'\\ \0' for n in range(length)],
        input_ids=rng.integers(0, 30522, length),
        segment_ids=np.append(0, rng.integers(0, 2, length - 1)),
        places=places_of([(n, n + 1) for n in range(length)]),
        special_tokens_mask=[0] * length,
        truncated=length == 1,
    )


def manifest_of(config: EncoderConfig, start: int | None = None) -> Any:
    """Return the part of a manifest that streams read, with a decoder if it has a start token."""
    decoder = None if start is None else SimpleNamespace(start_token_id=start)
    sentence = SimpleNamespace(pooling="mean", include_prompt=True)
    return SimpleNamespace(config=config, decoder=decoder, sentence=sentence)


def assert_same(found: Output, expected: Output) -> None:
    """Check that both hold the same arrays, bit for bit."""
    assert len(found.hidden) == len(expected.hidden)
    for name in ("pooled", "maps", "scores", "target", "decomposed"):
        assert (getattr(found, name) is None) == (getattr(expected, name) is None), name
    for one, other in zip(_arrays(found), _arrays(expected), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def _arrays(output: Output) -> list[Any]:
    own = [*output.hidden, output.pooled, output.maps, output.scores]
    if target := output.target:
        own += [*target.hidden, *target.cross, target.logprobs]
    if decomposed := output.decomposed:
        own += [decomposed.parts, decomposed.values]
    return [array for array in own if array is not None]


class StaysOpen(Engine):
    """Wrapper of an engine that ignores `close`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name, self.provider = engine.name, engine.provider
        self.concurrency, self.hidden_size = engine.concurrency, engine.hidden_size

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        return self._engine.run(tasks)


@contextlib.contextmanager
def batching(
    engine: Engine, max_batch_tokens: int = 64, max_queue_tokens: int = 10**6, **limits: Any
) -> Iterator[tuple[Scheduler, Recorder]]:
    """Yield a scheduler, and close it at the end."""
    recorder = Recorder()
    batcher = Scheduler(engine, BatchLimits(max_batch_tokens, max_queue_tokens, **limits), recorder)
    try:
        yield batcher, recorder
    finally:
        if isinstance(engine, GatedEngine):
            engine.let_through()
        batcher.close()


def exchange(
    request_id: str = "id", send: Send | None = None, service: Any = None, **scope: Any
) -> ServiceExchange:
    """Return the exchange of a request without a client, within the service's budget if any."""
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], **scope}
    budget = getattr(service, "replies", ByteBudget(2**20))
    found = ServiceExchange(scope, send or unsent, Reservation(budget), service)
    found.request_id, scope["exchange"] = request_id, found
    return found


def bare_service(turns: Turns | None = None, **settings: Any) -> Any:
    """Return the state of a service without models, as far as the HTTP layer needs it."""
    settled = Settings().model_copy(update=settings)
    return SimpleNamespace(
        settings=settled,
        bodies=ByteBudget(settled.max_body_bytes_in_flight, "bodies"),
        replies=ByteBudget(settled.max_bytes_in_flight),
        metrics=Metrics(),
        turns=turns or Turns(),
        images=None,
    )


@contextlib.contextmanager
def hold(budget: ByteBudget, size: int) -> Iterator[None]:
    """Hold bytes for another request while the block runs."""
    reservation = Reservation(budget)
    try:
        reservation.grow(size, bounded=True)
        yield
    finally:
        reservation.release()


async def unsent(message: Message) -> None:
    raise AssertionError(f"sent: {message}")


def reserved_replies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the bytes of each reply are added when they are reserved."""
    sizes, grow = list[int](), Reservation.grow

    def recorded(self: Reservation, size: int, *, bounded: bool = False) -> None:
        if bounded:
            sizes.append(size)
        grow(self, size, bounded=bounded)

    monkeypatch.setattr(Reservation, "grow", recorded)
    return sizes


def pause(pid: int) -> None:
    """Stop a process, and wait until it has stopped: signals arrive later."""
    process = psutil.Process(pid)
    process.suspend()
    while process.status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)


async def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)


class Client(httpx.AsyncClient):
    """Client of an application in this process; an exception becomes a 500."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        super().__init__(transport=transport, base_url="http://localhost", timeout=60)


@contextlib.asynccontextmanager
async def serving(
    artifact: Artifact | Sequence[Artifact],
    engine: Engine | Sequence[Engine] = (),
    **settings: Any,
) -> AsyncIterator[Client]:
    """Yield a client of a started application, of one model or several."""
    app = create_app(Settings(**settings), *_listed(artifact, engine))
    async with app.router.lifespan_context(app), Client(app) as client:
        yield client


def _listed(
    artifact: Artifact | Sequence[Artifact], engine: Engine | Sequence[Engine]
) -> tuple[Sequence[Artifact], Sequence[Engine]]:
    return (
        [artifact] if isinstance(artifact, Artifact) else artifact,
        [engine] if isinstance(engine, Engine) else engine,
    )


@contextlib.contextmanager
def listening(
    artifact: Artifact | Sequence[Artifact], engine: Engine | Sequence[Engine], **settings: Any
) -> Iterator[tuple[FastAPI, int]]:
    """Run an application behind a real server in a thread; raw requests may name any host."""
    app = create_app(Settings(**{"allowed_hosts": "*"} | settings), *_listed(artifact, engine))
    server = Server(app, state_of(app).settings)
    with bound("127.0.0.1", 0) as sockets:
        port = sockets[0].getsockname()[1]
        thread = threading.Thread(target=server.run, args=[sockets])
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.005)
            yield app, port
        finally:
            state_of(app).readiness.draining = True  # no client is waiting
            server.should_exit = True
            thread.join(timeout=20)


def body_of(parts: Iterable[Part | Unwritten]) -> bytes:
    """All parts of a reply, also those that are still to be written."""
    return b"".join(
        bytes(part) if isinstance(part, bytes | memoryview) else b"".join(part) for part in parts
    )


def assert_problem(
    response: httpx.Response, status: int, says: str = "", error_type: str = "Validation"
) -> dict[str, Any]:
    """Check that a reply is a small, complete problem that names its request, and return it."""
    assert response.status_code == status, response.text[:300]
    assert response.headers["content-type"] == "application/problem+json"
    assert len(response.content) <= 4096
    problem: dict[str, Any] = response.json()
    assert problem.keys() == PROBLEM_MEMBERS
    assert problem["status"] == status
    assert problem["type"].startswith("/problems/")
    assert problem["error_type"] == error_type
    assert problem["error"] == problem["detail"]
    assert problem["request_id"] == response.headers["x-request-id"]
    assert says in problem["detail"]
    assert ("retry-after" in response.headers) == (status in (429, 503))
    return problem
