"""Alerts of a real Prometheus: none under normal load, and each one under its own failure.

Rules and configuration come from deploy/prometheus; every window and `for` in the rules is divided
by `SPEED`, and no threshold is changed. Each alert's failure is caused in a service under load: the
default model with two workers, or a stub whose engine takes a known time.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from trials import alert_models, alert_stages, oracle
from trials.alert_stages import Stage
from trials.gates import Gate, Scale, Trial, at_least, at_most, exactly, main
from trials.memory_group import group
from trials.prometheus import Prometheus, running

NORMAL_SECONDS = 40
"""Seconds of normal load without an alert: 13 minutes of production."""
FIRES_SECONDS = 90.0
"""Seconds for an alert to fire; the slowest waits 15 s for the window of its rates."""
ENDS_SECONDS = 240.0
"""Seconds for an alert to end; the longest windows are 180 s."""
AT_ONCE = 3
"""Number of stages that run at the same time; the stage of workers runs by itself."""


async def staged(stage: Stage, prometheus: Prometheus) -> list[Gate]:
    """Watch a service under normal load, then cause each incident beside the load."""
    gates = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(oracle.artifact().folder, Path(name) / "artifact"))
        async with (
            stage.start(folder) as service,
            stage.load(service),
            prometheus.watching(stage.job, stage.port(service)) as target,
        ):
            names = ", ".join(alert.removeprefix("Headscope") for alert, *_ in stage.causes)
            before = await target.fired(NORMAL_SECONDS)
            requests = await target.value(stage.requests)
            gates = [
                exactly(f"normal load, before {names}: alerts", [], sorted(before)),
                at_least("… requests", 100, int(requests)),
            ]
            for alert, what, incident in stage.causes:
                await target.until(alert, ENDS_SECONDS, fires=False)
                async with incident(service, folder):
                    fires = await target.until(alert, FIRES_SECONDS, fires=True)
                ends = await target.until(alert, ENDS_SECONDS, fires=False)
                gates += [
                    at_most(f"{alert}: {what}; fires", FIRES_SECONDS, fires, " s"),
                    at_most(f"{alert}: over; ends", ENDS_SECONDS, ends, " s"),
                ]
    return gates


async def watched(stages: Sequence[Stage]) -> list[Gate]:
    """Watch the stages by one Prometheus, a few at a time."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def in_turn(stage: Stage, prometheus: Prometheus) -> list[Gate]:
        async with turn:
            return await staged(stage, prometheus)

    async with running() as prometheus:
        gates_of_stages = await asyncio.gather(*(in_turn(stage, prometheus) for stage in stages))
    return [gate for gates in gates_of_stages for gate in gates]


def in_memory(_: Scale) -> list[Gate]:
    """Run the stage that needs a control group; without permission, return the reason as a gate."""
    try:
        with group() as own:
            return asyncio.run(watched([alert_stages.limited(own)]))
    except PermissionError as error:
        why = f"not caused, as this user may make no control group: {error.strerror}"
        return [Gate("HeadscopeMemory", "caused, as root", why, passed=True)]


def of(stages: Callable[[], Sequence[Stage]]) -> Trial:
    """Return a trial of stages; its times follow from the rules, so that it has only one scale."""
    return lambda _: asyncio.run(watched(stages()))


if __name__ == "__main__":
    main(
        __doc__,
        workers=of(alert_stages.workers),
        failures=of(alert_stages.failures),
        saturated=of(alert_stages.saturated),
        clients=of(alert_stages.clients),
        balancers=of(alert_stages.balancers),
        models=of(alert_models.stages),
        memory=in_memory,
    )
