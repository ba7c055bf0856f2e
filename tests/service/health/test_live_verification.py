"""Live verification: PyTorch recomputes some batches, and differences are logged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from service.engines.contract import MapsTask, Output, Task
from service.engines.onnx import OnnxEngine
from service.models.state import state_of
from tests.service.harness import Client, StaysOpen, assert_problem, serving, until

pytestmark = pytest.mark.anyio
SHARE = 0.2
"""Share of verified batches, one in five: in five rounds of six batches, each has its turn."""
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/encode", {"inputs": ["one", "and another text"], "layer": 1, "pooling": "max"}),
    ("/encode", {"inputs": "one more", "outputs": ["pooled"]}),
    ("/attention", {"inputs": "the maps of all heads"}),
    ("/attention", {"inputs": "without one", "ablate": [{"layer": 0, "head": 1}], "top_k": 2}),
]


class Drifting(StaysOpen):
    """Engine on ONNX Runtime whose results can be made to drift."""

    drifts = ""

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        outputs = super().run(tasks)
        for task, output in zip(tasks, outputs, strict=True):
            if isinstance(task, MapsTask):
                if self.drifts == "attention":
                    assert output.maps is not None
                    output.maps[0, 0, 0] += 1e-3
            elif self.drifts == "hidden" and output.hidden:
                output.hidden[-1] = output.hidden[-1] + 0.01
            elif self.drifts == "map_states":
                output.map_states = [np.asarray(state) + 0.01 for state in output.map_states]
            elif self.drifts == "pooled" and output.pooled is not None:
                output.pooled = output.pooled + 0.01
        return outputs


async def metric(client: Client, name: str) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def verified(result: str) -> str:
    return f'headscope_verified_batches_total{{model="small",result="{result}"}}'


async def compared(client: Client) -> None:
    """Wait until no comparison is running."""
    sampling = state_of(client.app).models.default.health.live_verification
    while sampling._busy:
        await asyncio.sleep(0.01)


async def five_rounds(client: Client) -> None:
    for route, body in BODIES * 5:
        assert (await client.post(route, json=body)).status_code == 200
        await compared(client)


@pytest.mark.usefixtures("started_torch")
async def test_what_agrees_is_counted(artifact: Artifact, onnx_engine: OnnxEngine) -> None:
    async with serving(artifact, Drifting(onnx_engine), verify_share=SHARE) as client:
        await five_rounds(client)
        passed = await metric(client, verified("passed"))
        assert passed >= 5
        assert await metric(client, verified("failed")) == 0
        for kind in ("hidden", "attention", "pooled"):
            worst = await metric(
                client, f'headscope_live_max_abs_diff{{kind="{kind}",model="small"}}'
            )
            assert 0 < worst < 1e-4, kind  # two engines, not one
        assert (await client.get("/health/ready")).status_code == 200


@pytest.mark.usefixtures("started_torch")
@pytest.mark.parametrize(
    ("drifts", "kind"),
    [(kind, kind) for kind in ("hidden", "attention", "pooled")] + [("map_states", "hidden")],
)
async def test_what_drifts_fails_readiness(
    artifact: Artifact, onnx_engine: OnnxEngine, drifts: str, kind: str
) -> None:
    engine = Drifting(onnx_engine)
    async with serving(artifact, engine, verify_share=SHARE) as client:
        engine.drifts = drifts
        await five_rounds(client)
        says = f"live verification failed: {kind}, max abs diff"
        assert_problem(await client.get("/health/ready"), 503, says=says, error_type="Unhealthy")
        assert says in (await client.get("/info")).json()["failure"]
        assert await metric(client, verified("failed")) >= 1


@pytest.mark.usefixtures("started_torch")
async def test_a_share_is_that_share(artifact: Artifact, onnx_engine: OnnxEngine) -> None:
    async with serving(artifact, Drifting(onnx_engine), verify_share=0.25) as client:
        for _ in range(16):
            await client.post("/encode", json={"inputs": "again", "outputs": ["pooled"]})
            await compared(client)
        assert await metric(client, "headscope_verified_batches_total") == 4


async def test_by_default_nothing_is_computed_again(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    async with serving(artifact, Drifting(onnx_engine), request_timeout_seconds=600) as client:
        await client.post("/encode", json={"inputs": "once"})
        engines = state_of(client.app).models.default.inference.engines
        assert [*engines._schedulers] == [engines.name]


async def test_without_torch_the_result_is_unknown_and_answers_go_on(
    artifact: Artifact, onnx_engine: OnnxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.engines.process.importlib.util.find_spec", lambda _: None)
    async with serving(artifact, Drifting(onnx_engine), verify_share=1.0) as client:
        assert (await client.post("/encode", json={"inputs": "once"})).status_code == 200
        await until(lambda: not state_of(client.app).models.default.health.live_verification._busy)
        assert await metric(client, verified("unknown")) == 1
        assert (await client.get("/health/ready")).status_code == 200
