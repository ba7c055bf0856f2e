"""`POST /verify` compares every number of both engines, before its deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from model.runtimes.registry import load_runtime
from service.engines.contract import Engine, MapsTask, Output, Task, TextTask
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.engines.runtime import RuntimeEngine
from service.errors import Overloaded
from service.inference.verification import check_time
from service.scheduler.call import Demand
from tests.service.harness import CONFIG, Client, StaysOpen, assert_problem, batching, serving
from tests.service.scheduler.requests import FakeClock, tenth_a_token

pytestmark = pytest.mark.anyio


INPUTS = ["The animal didn't cross the street", "because it was too tired", "", "a " * 300]


class Bent(Engine):
    """Engine whose results can be changed."""

    name = "onnx"
    concurrency = 2

    def __init__(self, engine: OnnxEngine) -> None:
        self._engine = engine
        self.provider = engine.provider
        self.hidden_size = engine.hidden_size
        self.bend = lambda task, output: None

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        outputs = self._engine.run(tasks)
        for task, output in zip(tasks, outputs, strict=True):
            self.bend(task, output)
        return outputs


@pytest.fixture(scope="module")
async def bent(
    artifact: Artifact, onnx_engine: OnnxEngine, anyio_backend: str
) -> AsyncIterator[tuple[Client, Bent]]:
    engine = Bent(onnx_engine)
    async with serving(artifact, engine, request_timeout_seconds=600) as client:
        yield client, engine


@pytest.mark.slow
async def test_the_engines_agree_on_every_number(bent: tuple[Client, Bent]) -> None:
    client, engine = bent
    states: list[Any] = []
    layers: list[int] = []

    def follow(task: Task, output: Output) -> None:
        if isinstance(task, TextTask):
            states[:] = output.hidden
        else:  # the maps are computed from the engine's own hidden states
            np.testing.assert_array_equal(task.queries, states[task.layer])
            layers.append(task.layer)

    engine.bend = follow
    report = (await client.post("/verify", json={"inputs": INPUTS})).json()
    assert report["passed"] is True
    assert (report["reference"], report["against"]) == ("torch", "onnx")
    assert report["inputs"] == len(INPUTS)
    assert [entry["layer"] for entry in report["hidden"]] == [0, 1, 2]
    heads = [(entry["layer"], entry["head"]) for entry in report["attention"]]
    assert heads == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for entry in [*report["hidden"], *report["attention"], report["pooled"]]:
        assert entry["passed"] is True
        assert 0 <= entry["max_abs_diff"] < 1e-4
        assert entry["min_cosine"] > 0.999999
        assert entry["atol"] > 0
    assert any(entry["max_abs_diff"] > 0 for entry in report["hidden"])  # two engines, not one
    assert sorted(layers) == sorted([0, 1] * len(INPUTS))  # two batches of one text may overlap


def bend_map(task: Task, output: Output) -> None:
    if isinstance(task, MapsTask) and task.layer == 1 and task.tokens > 50:
        assert output.maps is not None
        output.maps[1, 7, 3] += 0.01


def bend_hidden(task: Task, output: Output) -> None:
    if isinstance(task, TextTask) and task.hidden_layers:
        output.hidden[-1] = output.hidden[-1] + 0.01


@pytest.mark.slow
async def test_one_wrong_weight_is_found_where_it_is(bent: tuple[Client, Bent]) -> None:
    client, engine = bent
    engine.bend = bend_map
    report = (await client.post("/verify", json={"inputs": INPUTS})).json()
    assert report["passed"] is False
    failed = [(e["layer"], e["head"]) for e in report["attention"] if not e["passed"]]
    assert failed == [(1, 1)]
    assert report["attention"][3]["max_abs_diff"] == pytest.approx(0.01, abs=1e-4)
    assert all(entry["passed"] for entry in [*report["hidden"], report["pooled"]])


@pytest.mark.slow
async def test_wrong_hidden_states_are_found(bent: tuple[Client, Bent]) -> None:
    client, engine = bent
    engine.bend = bend_hidden
    report = (await client.post("/verify", json={"inputs": INPUTS[:2]})).json()
    assert [entry["passed"] for entry in report["hidden"]] == [True, True, False]
    assert all(entry["passed"] for entry in report["attention"])


@pytest.mark.slow
async def test_an_engine_that_fails_is_said_to(bent: tuple[Client, Bent]) -> None:
    client, engine = bent

    def fail(task: Task, output: Output) -> None:
        if isinstance(task, MapsTask):
            raise RuntimeError("c4n4ry")

    engine.bend = fail
    response = await client.post("/verify", json={"inputs": "a"})
    assert_problem(response, 500, says="raised RuntimeError", error_type="Backend")


@pytest.mark.slow
async def test_it_ends_at_the_deadline(
    bent: tuple[Client, Bent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands still for all earlier checks, so that only its own deadline can end it."""
    client, engine = bent
    engine.bend = lambda task, output: None
    passed = await client.post("/verify", json={"inputs": INPUTS[0]})  # starts PyTorch
    assert passed.json()["passed"]
    clock = FakeClock(monkeypatch)
    clock.now = time.monotonic()
    monkeypatch.setattr("service.inference.tokenization.request_tokenizer.time", clock)
    monkeypatch.setattr("service.inference.verification.time", clock)
    held = threading.Event()
    engine.bend = lambda task, output: held.wait(20) and None
    try:
        late = await client.post(
            "/verify", json={"inputs": INPUTS[:2]}, headers={"x-request-timeout-ms": "500"}
        )
        assert_problem(late, 504, says="deadline", error_type="Backend")
    finally:
        held.set()
        engine.bend = lambda task, output: None
    passed = await client.post("/verify", json={"inputs": INPUTS[0]})
    assert passed.json()["passed"]


@pytest.mark.slow
async def test_a_decoder_is_compared_with_each_text_as_its_own_target(
    bart_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = RuntimeEngine("torch", load_runtime(bart_artifact, name="pytorch"), 1)
    monkeypatch.setattr("service.models.start.TorchEngine", lambda *_: StaysOpen(reference))
    engine = Bent(OnnxEngine(bart_artifact, "cpu", threads=1))
    async with serving(bart_artifact, engine) as client:
        report = (await client.post("/verify", json={"inputs": ["w1 w2 w3", "", "w9"]})).json()
        assert report["passed"] is True
        decoder = report["decoder"]
        assert [entry["layer"] for entry in decoder["hidden"]] == [0, 1, 2]
        assert [len(decoder[kind]) for kind in ("cross_queries", "attention")] == [2, 6]
        assert decoder["logprobs"]["passed"]

        def bend(task: Task, output: Output) -> None:
            if isinstance(task, MapsTask) and task.kind == "cross" and task.layer == 1:
                assert output.maps is not None
                output.maps[2] += 0.01

        engine.bend = bend
        report = (await client.post("/verify", json={"inputs": "w1 w2"})).json()
        failed = [e for e in report["decoder"]["cross_attention"] if not e["passed"]]
        assert [(entry["layer"], entry["head"]) for entry in failed] == [(1, 2)]
        assert all(entry["passed"] for entry in report["decoder"]["attention"])


class Pool:
    """Schedulers of two engines by name, and the names of those that were asked for."""

    def __init__(self, **schedulers: Any) -> None:
        self.schedulers = schedulers
        self.started: list[str] = []

    async def get(self, name: str) -> Any:
        self.started.append(name)
        return self.schedulers[name]


@pytest.mark.parametrize(
    ("tokens", "seconds", "started"),
    [
        (10, None, ["onnx", "torch"]),  # 1 s of texts and 2 s of both layers' maps, by each engine
        (20, r"takes 12\.0 s or more, and 10\.0 s", ["onnx", "torch"]),
        (40, r"takes 12\.0 s or more", ["onnx"]),
    ],
)
async def test_seconds_of_both_engines_add_up(
    tiny_artifact: Artifact,
    tokens: int,
    seconds: str | None,
    started: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(monkeypatch)
    monkeypatch.setattr("service.inference.verification.time", clock)
    manifest = tiny_artifact.manifest
    assert manifest.config.num_hidden_layers == 2
    with batching(FakeEngine(CONFIG)) as (onnx, _), batching(FakeEngine(CONFIG)) as (torch, _):
        for scheduler in (onnx, torch):
            lane = scheduler.lanes["attention"]
            lane.text_pace = lane.map_pace = tenth_a_token()
        pool: Any = Pool(onnx=onnx, torch=torch)
        demand, by = Demand(1, tokens), clock.now + 10
        if seconds is None:
            await check_time(pool, manifest, demand, by)
        else:
            with pytest.raises(Overloaded, match=seconds):
                await check_time(pool, manifest, demand, by)
        assert pool.started == started
