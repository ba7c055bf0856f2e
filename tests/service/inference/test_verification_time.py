"""`POST /verify`: what cannot be verified by the deadline is refused before it is tokenised."""

from __future__ import annotations

from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.errors import Overloaded
from service.inference.verification import check_time
from service.scheduler.admission import Demand
from service.scheduler.submission import Caller
from tests.service.harness import CONFIG, batching
from tests.service.scheduler.clock import FakeClock
from tests.service.scheduler.test_admission import tenth_a_token

pytestmark = pytest.mark.anyio


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
        demand = Demand(Caller(finish_by=clock.now + 10), 1, tokens)
        if seconds is None:
            await check_time(pool, manifest, demand)
        else:
            with pytest.raises(Overloaded, match=seconds):
                await check_time(pool, manifest, demand)
        assert pool.started == started
