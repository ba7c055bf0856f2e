"""Replicas on several devices: choice of a device, and devices that fail or are lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from model.artifact.manifest import Artifact
from model.errors import ProviderError
from model.runtimes.contract import Resources
from service.engines.contract import DeviceState, Engine, MapsTask, Output, Task
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.engines.process import LARGE_BYTES, DeviceEngine, EngineProcess, Failure, receive, send
from service.engines.replicas import SUSPICIOUS_FAILURES, Replicas
from service.errors import EngineFailed, EngineUnavailable
from service.health.golden import GoldenCheck
from service.models.start import engine_factories, torch_hosts
from service.models.state import state_of
from service.settings import Settings
from tests.service.harness import (
    CONFIG,
    AnsweringEngine,
    Client,
    GatedEngine,
    assert_problem,
    assert_same,
    layer_maps,
    pause,
    serving,
    text,
    until,
)
from tests.service.scraped import samples


class MortalEngine(AnsweringEngine):
    """Engine that is alive until the test ends it, or it is closed."""

    lives = True

    @property
    def alive(self) -> bool:
        return self.lives

    def close(self) -> None:
        self.lives = False


def computes(_: object) -> None:
    """Let a fake engine compute, or a trial pass."""


def fails(_: object) -> None:
    raise EngineFailed("on purpose")


def tokens_of(engine: Replicas) -> list[int]:
    return [device.queued_tokens for device in engine.devices]


def states_of(engine: Engine) -> list[str]:
    return [device.state for device in engine.devices]


@pytest.mark.anyio
async def test_a_batch_goes_to_the_device_with_the_fewest_tokens_in_flight() -> None:
    devices = [GatedEngine(), GatedEngine()]
    engine = Replicas(dict(enumerate(devices)), computes)
    assert engine.concurrency == 2
    with ThreadPoolExecutor(8) as threads:
        for tokens, in_flight in [(10, [10, 0]), (4, [10, 4]), (3, [10, 7]), (9, [10, 16])]:
            threads.submit(engine.run, [text(tokens - 2), text(2)])
            await until(lambda expected=in_flight: tokens_of(engine) == expected)
        threads.submit(engine.run, [text(1)])
        await until(lambda: tokens_of(engine) == [11, 16])
        for device in devices:
            device.let_through()
    assert [[sum(batch) for batch in device.batches] for device in devices] == [[10, 1], [4, 3, 9]]
    assert tokens_of(engine) == [0, 0]


def test_a_lost_device_fails_its_batch_alone() -> None:
    def lose(_: Sequence[Task]) -> None:
        lost.lives = False
        raise EngineUnavailable("lost")

    lost, other = MortalEngine(lose), MortalEngine(computes)
    engine = Replicas({3: lost, 5: other}, computes)
    with pytest.raises(EngineUnavailable, match="lost"):
        engine.run([text(4)])
    assert engine.devices == [DeviceState(3, "lost", 0), DeviceState(5, "serving", 0)]
    for _ in range(3):
        assert len(engine.run([text(4), text(2)])) == 2
    engine.release_memory()
    assert (lost.batches, other.batches, engine.alive) == (1, 3, True)
    other.lives = False
    assert not engine.alive
    with pytest.raises(EngineUnavailable, match="all devices are lost"):
        engine.run([text(4)])


@pytest.mark.parametrize(("trial", "state"), [(computes, "serving"), (fails, "lost")])
def test_a_device_that_only_fails_is_tried(trial: Callable[[Engine], None], state: str) -> None:
    tried: list[Engine] = []
    broken, other = MortalEngine(fails), MortalEngine(computes)

    def recorded(one: Engine) -> None:
        tried.append(one)
        trial(one)

    engine = Replicas({0: broken, 1: other}, recorded)
    for batch in range(SUSPICIOUS_FAILURES):
        assert (tried, states_of(engine)) == ([], ["serving"] * 2), batch
        with pytest.raises(EngineFailed):
            engine.run([text(4)])
    assert (tried, states_of(engine)) == ([broken], [state, "serving"])


def test_failures_between_computed_batches_are_of_the_texts() -> None:
    broken = MortalEngine(lambda tasks: fails(tasks) if len(tasks) > 1 else None)
    engine = Replicas({0: broken}, fails)
    for _ in range(2 * SUSPICIOUS_FAILURES):
        with pytest.raises(EngineFailed):
            engine.run([text(4)] * 2)
        engine.run([text(4)])
    assert engine.alive


@pytest.mark.parametrize("where", ["start", "trial"])
def test_all_devices_start_or_none(where: str) -> None:
    engines = [MortalEngine(computes) for _ in range(3)]

    def start(device: int) -> Engine:
        if where == "start" and device == 1:
            raise ProviderError("there is no device 1")
        return engines[device]

    def trial(engine: Engine) -> None:
        if where == "trial" and engine is engines[1]:
            raise ProviderError("there is no device 1")

    with pytest.raises(ProviderError, match="no device 1"):
        Replicas.start(range(3), start, trial)
    assert [engine.lives for engine in engines] == [False, where == "start", False]


def test_large_arrays_arrive_as_they_were_sent() -> None:
    rng = np.random.default_rng(0)
    hidden = [rng.standard_normal((n, 8), np.float32) for n in (3, LARGE_BYTES // 32, 9999)]
    sent = [Output(hidden, pooled=hidden[1][0]), Output(maps=hidden[2].T)]
    one, other = socket.socketpair()
    for end in (one, other):
        end.settimeout(20)
    with one, other, ThreadPoolExecutor(1) as threads:
        sending = threads.submit(send, one, sent)
        received = receive(other)
        sending.result()
        for found, expected in zip(received, sent, strict=True):
            assert_same(found, expected)
        assert all(array.flags.writeable for array in received[0].hidden)
        for array in (np.arange(3, dtype=np.uint8), np.zeros((0, 4)), np.arange(5)):
            send(one, [array, array[:0], np.arange(3)])
            found, empty, last = receive(other)
            np.testing.assert_array_equal(found, array, strict=True)
            assert empty.shape == array[:0].shape
            assert last.flags.aligned
            assert last.tolist() == [0, 1, 2]
        one.close()
        with pytest.raises(EOFError):
            receive(other)


@contextlib.contextmanager
def replicas(artifact: Artifact, seconds: float = 60) -> Iterator[tuple[Replicas, list[int]]]:
    """Yield an engine on two stand-in devices on the CPU, and the ids of its processes."""
    started: dict[int, DeviceEngine] = {}

    def start(device: int) -> Engine:
        started[device] = DeviceEngine(artifact, seconds, Resources("cpu", 1, device))
        return started[device]

    engine = Replicas.start((0, 1), start, GoldenCheck(artifact))
    with contextlib.closing(engine):
        yield engine, [pid for device in (0, 1) if (pid := started[device].pid)]


@pytest.mark.slow
def test_a_replica_computes_as_the_engine_in_the_service(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    states = onnx_engine.run([text(300, hidden_layers=(1,))])[0].hidden[0]
    tasks: list[Task] = [
        text(5),
        text(300, hidden_layers=(0, 2)),
        MapsTask(states, states, 1, (0, 1)),
    ]
    with replicas(artifact) as (engine, pids):
        assert engine.provider == onnx_engine.provider
        assert (engine.hidden_size, engine.batch_tokens) == (128, onnx_engine.batch_tokens)
        for found, expected in zip(engine.run(tasks), onnx_engine.run(tasks), strict=True):
            assert_same(found, expected)
        with pytest.raises(EngineFailed, match="device 0 failed: "):
            engine.run([layer_maps(4)])
        for pid in pids:
            loaded = [area.path for area in psutil.Process(pid).memory_maps()]
            assert any("onnxruntime" in path for path in loaded)
            assert not any("torch" in path for path in loaded)
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.slow
def test_every_device_is_warmed_up_in_its_process(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replicas(artifact) as (engine, _):
        asked: list[tuple[object, ...]] = []
        ask = EngineProcess.ask

        def recorded(process: EngineProcess, *call: Any, seconds: float) -> object:
            asked.append((process.title, *call[1:], ask(process, *call, seconds=seconds)))
            return asked[-1][-1]

        monkeypatch.setattr(EngineProcess, "ask", recorded)
        engine.warm_up(64, 8)
        engine.release_memory()
    expected = [("warm_up", 64, 8, None), ("release_memory", None)]
    calls = [(f"device {device}", *call) for call in expected for device in (0, 1)]
    assert sorted(asked, key=repr) == sorted(calls, key=repr)


@pytest.mark.slow
def test_a_device_that_is_not_there(artifact: Artifact) -> None:
    """Here the package for CPUs has no device at all."""
    with pytest.raises(EngineUnavailable, match="device 7 cannot load the model: device cuda: "):
        DeviceEngine(artifact, 60, Resources("cuda", 2, 7))


@pytest.mark.slow
def test_a_device_that_its_process_has_lost(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(DeviceEngine(artifact, 60, Resources("cpu", 1, 7))) as engine:
        pid = engine.pid
        lost = Failure("DeviceLostError", "CUDA: the device was lost")
        monkeypatch.setattr(engine._process, "ask", lambda *_, **__: lost)
        with pytest.raises(EngineUnavailable, match="device 7: CUDA: the device was lost"):
            engine.run([text(4)])
        assert not engine.alive
        assert pid is not None
        assert not psutil.pid_exists(pid)


def encode(client: Client, inputs: str) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(client.post("/encode", json={"inputs": inputs}))


async def statuses(client: Client, count: int) -> set[int]:
    answers = await asyncio.gather(*(encode(client, "a b c") for _ in range(count)))
    return {answer.status_code for answer in answers}


async def health(client: Client) -> dict[str, Any]:
    response = await client.get("/health/ready")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def up(client: Client) -> list[float]:
    found = await samples(client)
    keys = [(("device", device), ("model", "small")) for device in "01"]
    assert all(("headscope_device_queued_tokens", key) in found for key in keys)
    return [found["headscope_device_up", key] for key in keys]


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_killed_replica_takes_its_batch_along_and_nothing_else(artifact: Artifact) -> None:
    with replicas(artifact) as (engine, pids):
        async with serving(artifact, engine) as client:
            assert await health(client) == {"status": "ready"}
            assert await up(client) == [1, 1]
            for pid in pids:
                pause(pid)
            first = encode(client, "a")
            await until(lambda: tokens_of(engine) == [3, 0])
            second = encode(client, "a b")
            await until(lambda: tokens_of(engine) == [3, 4])
            devices = (await client.get("/info")).json()["devices"]
            assert devices[1] == {"id": 1, "state": "serving", "queued_tokens": 4}
            os.kill(pids[0], signal.SIGCONT)
            assert (await first).status_code == 200
            assert await statuses(client, 8) == {200}

            load = asyncio.create_task(statuses(client, 32))
            os.kill(pids[1], signal.SIGKILL)
            assert_problem(await second, 503, says="device 1 process", error_type="Unhealthy")
            assert await load == {200}
            assert await statuses(client, 8) == {200}
            devices = (await client.get("/info")).json()["devices"]
            assert [device["state"] for device in devices] == ["serving", "lost"]
            assert await health(client) == {
                "status": "ready",
                "detail": "small: device 1 is lost",
            }
            assert await up(client) == [1, 0]

            os.kill(pids[0], signal.SIGKILL)
            await until(lambda: not engine.alive)
            response = await client.get("/health/ready")
            assert_problem(response, 503, says="engine is down", error_type="Unhealthy")
            assert await up(client) == [0, 0]


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_hung_device_is_lost_before_the_engine_counts_as_hung(artifact: Artifact) -> None:
    with replicas(artifact, seconds=1) as (engine, pids):
        async with serving(artifact, engine, batch_timeout_seconds=1) as client:
            scheduler = state_of(client.app).models.default.inference.engines.default
            pause(pids[0])
            response = await encode(client, "a")
            assert_problem(
                response, 504, says="device 0 did not answer within 0.9 s", error_type="Backend"
            )
            assert (scheduler.failure, states_of(engine)) == ("", ["lost", "serving"])
            assert await statuses(client, 4) == {200}


@pytest.mark.parametrize(
    ("devices", "count", "started"),
    [("4,2", 0, [4, 2]), ("all", 3, [0, 1, 2]), ("all", 1, 0), ("all", 0, 0), ("6", 0, 6)],
)
def test_the_setting_starts_a_replica_on_each_device(
    artifact: Artifact,
    monkeypatch: pytest.MonkeyPatch,
    devices: str,
    count: int,
    started: list[int] | int,
) -> None:
    """One device has no process of its own."""
    places: dict[int, tuple[object, ...]] = {}

    def device_engine(_: Artifact, seconds: float, resources: Resources) -> Engine:
        places[resources.device_id] = seconds, resources
        return FakeEngine(CONFIG)

    def onnx_engine(_: Artifact, *options: object) -> Engine:
        assert options == ("cuda", 3, started, 2**30, True)
        return FakeEngine(CONFIG)

    where = "service.models.start"
    monkeypatch.setattr(f"{where}.cuda.device_count", lambda: count)
    monkeypatch.setattr(f"{where}.check_device", computes_on)
    monkeypatch.setattr(f"{where}.DeviceEngine", device_engine)
    monkeypatch.setattr(f"{where}.OnnxEngine", onnx_engine)
    settings = Settings(devices=devices, threads=3, device_memory_bytes=2**30, cuda_graphs=True)
    engine = engine_factories(settings, artifact, computes, torch_hosts(settings))["onnx"]()
    if isinstance(started, list):
        assert places == {
            device: (60, Resources("cuda", 3, device, 2**30, cuda_graphs=True))
            for device in started
        }
        assert [device.id for device in engine.devices] == started
    else:
        assert (places, list(engine.devices)) == ({}, [])


def computes_on(runtime: str, device: str) -> None:
    assert (runtime, device) == ("onnx", "cuda")
