"""A real Prometheus sees nothing of services under normal load, and all that goes wrong.

Rules and configuration are those of deploy/prometheus; every window and `for` in the rules is
divided by `SPEED`, no threshold is changed. What each alert is for is done to a service that is
asked meanwhile: the default model with two workers, or a stub whose engine takes a known time.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from trials import alert_stages, oracle
from trials.alert_stages import Stage
from trials.gates import Gate, Scale, Trial, at_least, at_most, exactly, main
from trials.memory_group import group
from trials.prometheus import Prometheus, running

NORMAL_SECONDS = 40
"""Without an alert, before anything is done: 13 minutes of production."""
FIRES_SECONDS = 90.0
"""For an alert to fire, of which the longest waits 15 s for what its rates look back at."""
ENDS_SECONDS = 240.0
"""For it to end; the longest look back 180 s."""
AT_ONCE = 3
"""Services that are watched together, once those of workers have had the machine alone."""


async def staged(stage: Stage, prometheus: Prometheus) -> list[Gate]:
    """A service under normal load, then each happening beside it."""
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
            for alert, what, happening in stage.causes:
                await target.until(alert, ENDS_SECONDS, fires=False)
                async with happening(service, folder):
                    fires = await target.until(alert, FIRES_SECONDS, fires=True)
                ends = await target.until(alert, ENDS_SECONDS, fires=False)
                gates += [
                    at_most(f"{alert}: {what}; fires", FIRES_SECONDS, fires, " s"),
                    at_most(f"{alert}: over; ends", ENDS_SECONDS, ends, " s"),
                ]
    return gates


async def watched(stages: Sequence[Stage]) -> list[Gate]:
    """Stages by one Prometheus, a few at once."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def in_turn(stage: Stage, prometheus: Prometheus) -> list[Gate]:
        async with turn:
            return await staged(stage, prometheus)

    async with running() as prometheus:
        found = await asyncio.gather(*(in_turn(stage, prometheus) for stage in stages))
    return [gate for gates in found for gate in gates]


def in_memory(_: Scale) -> list[Gate]:
    """The stage that needs a control group, or why there can be none."""
    try:
        with group() as own:
            return asyncio.run(watched([alert_stages.limited(own)]))
    except PermissionError as error:
        why = f"not caused, as this user may make no control group: {error.strerror}"
        return [Gate("HeadscopeMemory", "caused, as root", why, passed=True)]


def of(stages: Callable[[], Sequence[Stage]]) -> Trial:
    """A trial of stages; its times are the rules', so that it has one scale."""
    return lambda _: asyncio.run(watched(stages()))


if __name__ == "__main__":
    main(
        __doc__,
        workers=of(alert_stages.workers),
        failures=of(alert_stages.failures),
        saturated=of(alert_stages.saturated),
        clients=of(alert_stages.clients),
        balancers=of(alert_stages.balancers),
        memory=in_memory,
    )
