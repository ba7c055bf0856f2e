"""Choice of the engine, fingerprints, failed uses, and times of a request's steps."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from model.artifact.manifest import Artifact
from model.artifact.verification import Verdict
from model.config.precision import Use
from service.engines.contract import Engine
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.errors import EngineNotInstalled, EngineUnavailable
from service.inference.core import Inference
from service.inference.engine_pool import EnginePool
from service.inference.fingerprint import fingerprint_of
from service.inference.timings import Timings, Warnings
from service.models.state import state_of
from service.scheduler.lanes import BatchLimits
from service.scheduler.queue import Slot
from tests.service.harness import CONFIG, Recorder, assert_problem, serving, text, until
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio


class Named(FakeEngine):
    def __init__(self, name: str) -> None:
        super().__init__(CONFIG)
        self.name = name
        self.dead = self.closed = False

    @property
    def alive(self) -> bool:
        return not self.dead

    def close(self) -> None:
        self.closed = True


class Slow:
    """Starter of an engine that waits until the test releases it."""

    def __init__(self, fails: bool = False) -> None:
        self.started: list[Named] = []
        self.calls = 0
        self.fails = fails
        self.gate = threading.Event()

    def __call__(self) -> Engine:
        self.calls += 1
        assert self.gate.wait(60)
        if self.fails:
            raise EngineUnavailable("it does not start", retry_after_seconds=5)
        self.started.append(Named("torch"))
        return self.started[-1]


@contextlib.contextmanager
def backends(torch: Callable[[], Engine] | None = None) -> Iterator[EnginePool]:
    others = {"torch": torch} if torch else {}
    found = EnginePool(Named("onnx"), others, BatchLimits(64, 1000), Recorder())
    try:
        yield found
    finally:
        if isinstance(torch, Slow):
            torch.gate.set()
        found.close()


async def test_what_is_not_there_is_not_replaced() -> None:
    with (
        backends() as found,
        pytest.raises(EngineNotInstalled, match="torch engine is not part of this service"),
    ):
        await found.get("torch")


async def test_another_starts_at_its_first_use_and_stays() -> None:
    slow = Slow()
    slow.gate.set()
    with backends(slow) as found:
        assert slow.calls == 0
        batcher = await found.get("torch")
        assert (await batcher.submit("encode", [text(5)]))[0].value.pooled is not None
        assert await found.get("torch") is batcher
        assert slow.calls == 1
    assert slow.started[0].closed


async def test_many_who_ask_at_once_start_one_and_nobody_else_waits() -> None:
    slow = Slow()
    with backends(slow) as found:
        asking = [asyncio.create_task(found.get("torch")) for _ in range(10)]
        await until(lambda: slow.calls)
        async with asyncio.timeout(60):
            assert await found.get("onnx") is found.default
            assert await found.get(None) is found.default
        slow.gate.set()
        assert len(set(await asyncio.gather(*asking))) == 1
        assert slow.calls == 1


async def test_who_leaves_does_not_stop_a_start() -> None:
    slow = Slow()
    with backends(slow) as found:
        leaving = asyncio.create_task(found.get("torch"))
        await until(lambda: slow.calls)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        staying = asyncio.create_task(found.get("torch"))
        slow.gate.set()
        assert (await staying).engine is slow.started[0]
        assert slow.calls == 1


async def test_one_that_died_is_started_again() -> None:
    slow = Slow()
    slow.gate.set()
    with backends(slow) as found:
        first = await found.get("torch")
        slow.started[0].dead = True
        second = await found.get("torch")
        assert second is not first
        assert second.engine is slow.started[1]
        assert len(await second.submit("encode", [text(5)])) == 1


async def test_a_start_that_fails_is_tried_again_at_the_next_use() -> None:
    slow = Slow(fails=True)
    slow.gate.set()
    with backends(slow) as found:
        for calls in (1, 2):
            with pytest.raises(EngineUnavailable, match="does not start"):
                await found.get("torch")
            assert slow.calls == calls
        slow.fails = False
        assert (await found.get("torch")).engine.alive


async def test_a_default_that_died_stays_the_default() -> None:
    slow = Slow()
    with backends(slow) as found:
        engine = found.default.engine
        assert isinstance(engine, Named)
        engine.dead = True
        assert await found.get("onnx") is found.default
        with pytest.raises(EngineUnavailable, match="onnx engine is down") as refused:
            await found.default.submit("encode", [text(5)])
        assert refused.value.retry_after_seconds == 5


CPU = "CPUExecutionProvider"


def test_a_copy_has_the_fingerprint_and_another_artifact_does_not(artifact: Artifact) -> None:
    manifest = artifact.manifest
    found = fingerprint_of(artifact, CPU)
    assert found == fingerprint_of(replace(artifact, folder=artifact.folder.parent), CPU)
    assert found == fingerprint_of(artifact, CPU, stand_in=True)
    int8 = replace(artifact, manifest=manifest.model_copy(update={"precision": "int8"}))
    others = {
        fingerprint_of(replace(artifact, sha256="0" * 64), CPU),
        fingerprint_of(artifact, "CUDAExecutionProvider"),
        fingerprint_of(int8, CPU),
        fingerprint_of(int8, CPU, stand_in=True),
    }
    assert len(others | {found}) == 5


ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/encode", {"inputs": "a"}),
    ("/attention", {"inputs": "a"}),
    ("/tokenize", {"inputs": "a"}),
    ("/embed", {"inputs": "a"}),
    ("/v1/embeddings", {"input": "a"}),
    ("/v2/embed", {"texts": ["a"], "input_type": "clustering", "embedding_types": ["float"]}),
    ("/pooling", {"input": "a"}),
    (
        "/v2/models/any/infer",
        {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]},
    ),
]


async def test_every_reply_of_a_model_has_its_fingerprint(artifact: Artifact) -> None:
    """Replies of every dialect, refusals by the model, and /info."""
    async with serving(artifact, fake_of(artifact)) as client:
        expected = (await client.get("/info")).json()["fingerprint"]
        assert expected == fingerprint_of(artifact, fake_of(artifact).provider)
        for path, body in ROUTES:
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, (path, answer.text)
            assert answer.headers.get_list("x-model-fingerprint") == [expected], path
        refused = await client.post("/encode", json={"inputs": "a", "layer": 99})
        assert (refused.status_code, refused.headers["x-model-fingerprint"]) == (422, expected)
        refused = await client.post("/encode", content=b"{")
        assert (refused.status_code, refused.headers["x-model-fingerprint"]) == (415, expected)
        assert "x-model-fingerprint" not in (await client.get("/health")).headers


class NamedFake(FakeEngine):
    """A fake with the name of another engine."""

    def __init__(self, artifact: Artifact, name: str) -> None:
        super().__init__(artifact.manifest.config)
        self.name = name


async def test_a_reply_has_the_fingerprint_of_the_engine_that_took_its_tasks(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where PyTorch takes over, or gives back, after the request has come."""
    int8 = variant(artifact, "int8", 12, precision="int8")
    engine = NamedFake(int8, "onnx")
    own = fingerprint_of(int8, engine.provider)
    other = fingerprint_of(int8, engine.provider, stand_in=True)
    tokenize = Inference.prepare
    async with serving(int8, engine) as client:
        engines = state_of(client.app).models.default.inference.engines
        monkeypatch.setitem(engines._factories, "torch", lambda: NamedFake(int8, "torch"))

        async def found(turns_to: str | None, *, before: bool, **asked: Any) -> str:
            """The reply's fingerprint where another engine serves around the tokenising."""

            async def turning(*arguments: Any) -> Any:
                if before:
                    engines.stand_in = turns_to
                prepared = await tokenize(*arguments)
                engines.stand_in = turns_to
                return prepared

            monkeypatch.setattr(Inference, "prepare", turning)
            answer = await client.post("/encode", json={"inputs": "a"} | asked)
            assert answer.status_code == 200, answer.text
            expected = fingerprint_of(
                int8, engine.provider, stand_in=answer.json()["backend"] == "torch"
            )
            assert answer.headers["x-model-fingerprint"] == expected
            return expected

        assert await found("torch", before=True) == other
        assert await found(None, before=False) == other
        assert await found("torch", before=False) == own
        assert await found("torch", before=True, backend="onnx") == own
        assert await found(None, before=True, backend="torch") == other


FIGURE = "least cosine 0.8120 (at least 0.9), over 154 texts"
WHAT = {"vectors": "vectors", "heads": "attention weights and hidden states"}
OF_HEADS: list[tuple[str, dict[str, Any]]] = [
    ("/attention", {"inputs": "the cat"}),
    ("/attention/scores", {"inputs": "the cat", "layer": 0, "head": 0}),
    ("/encode", {"inputs": "the cat", "outputs": ["tokens"]}),
    ("/encode", {"inputs": "the cat"}),
    ("/encode", {"inputs": "the cat", "outputs": ["pooled"], "layer": 0}),
    ("/encode", {"inputs": "the cat", "outputs": ["pooled"], "pooling": "max"}),
    ("/encode", {"inputs": "the cat", "outputs": ["pooled"], "layers": [0, 2]}),
    ("/embed_all", {"inputs": "the cat"}),
    ("/explain", {"inputs": [["the cat", "a"]]}),
]
OF_VECTORS: list[tuple[str, dict[str, Any]]] = [
    ("/encode", {"inputs": "the cat", "outputs": ["pooled"]}),
    ("/embed", {"inputs": "the cat"}),
    ("/v1/embeddings", {"input": "the cat"}),
]


def failing(artifact: Artifact, use: Use) -> Artifact:
    """Return the artifact with a manifest in which a use failed."""
    update = {use: Verdict(passed=False, failed=FIGURE)}
    record = artifact.manifest.verification.model_copy(update=update)
    manifest = artifact.manifest.model_copy(update={"verification": record})
    return replace(artifact, manifest=manifest)


Start = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def start(tiny_artifact: Artifact) -> Start:
    """Return `start(use, …)`, which runs a service of an artifact with a failed use."""

    def of(use: Use, **settings: Any) -> AbstractAsyncContextManager[httpx.AsyncClient]:
        artifact = failing(tiny_artifact, use)
        return serving(artifact, OnnxEngine(artifact, "cpu", threads=2), **settings)

    return of


@pytest.fixture
async def whole(tiny_artifact: Artifact) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(tiny_artifact, OnnxEngine(tiny_artifact, "cpu", threads=2)) as client:
        yield client


@pytest.mark.parametrize(
    ("use", "refused", "served"),
    [("heads", OF_HEADS, OF_VECTORS), ("vectors", OF_VECTORS, OF_HEADS[:3])],
)
async def test_the_use_that_failed_is_a_501_with_the_figure(
    start: Start,
    whole: httpx.AsyncClient,
    use: Use,
    refused: list[tuple[str, dict[str, Any]]],
    served: list[tuple[str, dict[str, Any]]],
) -> None:
    async with start(use) as client:
        for route, body in refused:
            reply = await client.post(route, json=body)
            assert reply.status_code == 501, (route, body, reply.text)
            assert FIGURE in reply.text
            assert f"not served for {WHAT[use]}" in reply.text
        for route, body in served:
            expected = (await whole.post(route, json=body)).json()
            assert (await client.post(route, json=body)).json() == expected, (route, body)


async def test_a_refusal_is_a_problem_that_no_retry_mends(start: Start) -> None:
    async with start("heads") as client:
        reply = await client.post("/attention", json={"inputs": "the cat"})
        problem = assert_problem(reply, 501, reply.json()["detail"], "Backend")
        assert problem["type"].endswith("not-verified")
        assert not problem["retryable"]
        info = (await client.get("/info")).json()
        assert info["verification"]["heads"] == {"passed": False, "failed": FIGURE}
        assert info["verification"]["vectors"]["passed"]


async def test_what_is_allowed_unverified_is_served(start: Start) -> None:
    async with start("heads", allow_unverified=True) as client:
        reply = await client.post("/attention", json={"inputs": "the cat", "layers": [0]})
        assert reply.status_code == 200
        maps = np.array(reply.json()["results"][0]["attention"])
        np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=1e-5)


def slot(queue_seconds: float, inference_seconds: float) -> Slot[None]:
    """Return the result of a task that took these seconds."""
    computed = Slot.__new__(Slot)
    computed.queue_seconds, computed.inference_seconds = queue_seconds, inference_seconds
    return computed


def test_of_tasks_side_by_side_the_longest_counts() -> None:
    timings = Timings(tokens=9, began=100.0, tokenization_seconds=0.5)
    timings.add([slot(0.1, 2.0), slot(0.4, 1.0)])
    assert (timings.queue_seconds, timings.inference_seconds) == (0.4, 2.0)
    timings.add([slot(0.25, 0.125)])  # one step after the other
    assert timings.queue_seconds == pytest.approx(0.65)
    assert timings.inference_seconds == pytest.approx(2.125)
    assert (timings.tokens, timings.began, timings.tokenization_seconds) == (9, 100.0, 0.5)


def test_parts_that_went_one_after_the_other_add_up() -> None:
    both = Timings(3, 100.0, 0.5, 0.25, 2.0) + Timings(4, 101.0, 0.25, 0.5, 1.0)
    assert both == Timings(7, 100.0, 0.75, 0.75, 3.0)


def test_so_do_their_warnings() -> None:
    one, other = Warnings(truncated=1), Warnings(1, 2, 3)
    both = Timings(3, 0.0, 0.0, warnings=one) + Timings(4, 0.0, 0.0, warnings=other)
    assert both.warnings == Warnings(2, 2, 3)
