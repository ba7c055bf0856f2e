"""Alerts of a real Prometheus: none under normal load, and each one under its own failure.

Rules and configuration come from deploy/prometheus; every window and `for` in the rules is divided
by `SPEED`, and no threshold is changed. Each alert's failure is caused in a service under load: the
default model with two workers, or a stub whose engine takes a known time. The times follow from
the rules, so these trials have only one scale.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from benchmarks.harness.service import default_checkpoint
from model.artifact.manifest import MANIFEST, load_artifact
from service.artifacts.footprint import footprint
from service.settings import Settings
from testing import process
from testing.haproxy import balancing
from testing.process import free_port
from trials import incidents, oracle
from trials.faults import TRIGGERS, faults_of
from trials.gates import Gate, Scale, at_least, at_most, exactly
from trials.incidents import Incident, normal, sending
from trials.prometheus import Prometheus, running
from trials.replicas import Replica
from trials.servers import PATIENT, STUB, serve, stub

NORMAL_SECONDS = 40
"""Seconds of normal load without an alert: 13 minutes of production."""
FIRES_SECONDS = 90.0
"""Seconds for an alert to fire; the slowest waits 15 s for the window of its rates."""
ENDS_SECONDS = 240.0
"""Seconds for an alert to end; the longest windows are 180 s."""
AT_ONCE = 3
"""Number of stages that run at the same time; the stage of workers runs by itself."""
Starting = contextlib.AbstractAsyncContextManager[process.Service]


@dataclass(frozen=True)
class Stage:
    """Watched service, and the incidents caused in turn."""

    start: Callable[[Path], Starting]
    """Function that starts the service on the artifact in a folder."""
    causes: Sequence[tuple[str, str, Incident]]
    """Name of each alert, description of its cause, and the incident that causes it."""
    load: Callable[[process.Service], contextlib.AbstractAsyncContextManager[None]] = normal
    job: str = "headscope"
    port: Callable[[Any], int] = attrgetter("port")
    """Function that returns the port that Prometheus scrapes."""
    requests: str = "headscope_requests_total"
    """Metric that counts the requests of the stage's load."""


def stubbed(engine: dict[str, Any] | None = None, **settings: Any) -> Callable[[Path], Starting]:
    """Return a function that starts a stub with this engine and these settings."""
    return lambda folder: stub(engine, artifact=[str(folder)], **settings)


def real(*flags: str) -> Callable[[Path], Starting]:
    """Return a function that starts `headscope serve` with these flags."""
    return lambda folder: serve("--artifact", str(folder), *flags)


async def staged(stage: Stage, prometheus: Prometheus) -> list[Gate]:
    """Watch a service under normal load, then cause each incident beside the load."""
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


async def watched(*stages: Stage) -> list[Gate]:
    """Watch the stages by one Prometheus, a few at a time."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def in_turn(stage: Stage, prometheus: Prometheus) -> list[Gate]:
        async with turn:
            return await staged(stage, prometheus)

    async with running() as prometheus:
        gates_of_stages = await asyncio.gather(*(in_turn(stage, prometheus) for stage in stages))
    return [gate for gates in gates_of_stages for gate in gates]


async def alert_workers(_: Scale) -> list[Gate]:
    """Watch the default model in two workers."""
    flood = incidents.FLOOD
    causes = (
        ("HeadscopeRefuses", "60 clients of long texts", sending(*[flood] * 60)),
        ("HeadscopeUnauthorized", "two clients without a key", sending(flood, flood, headers={})),
        ("HeadscopeEngineRestarted", "PyTorch's process is killed", incidents.engine_killed),
        ("HeadscopeWorkerRestarted", "a worker is killed", incidents.worker_killed),
        ("HeadscopeNotReady", "a worker hangs", incidents.worker_stopped),
        ("HeadscopeWorkerMissing", "a worker cannot start again", incidents.worker_lost),
        ("HeadscopeDown", "the service is killed", incidents.killed),
    )
    return await watched(Stage(real("--workers", "2", "--api-keys", "trial"), causes))


async def alert_failures(_: Scale) -> list[Gate]:
    """Watch failing engines and services."""
    hangs = {"batch_timeout_seconds": 1.0, "request_timeout_seconds": 2.0, "fallback": "torch"}
    poison, hang = (faults_of([TRIGGERS[fault]]) for fault in ("raise", "hang"))
    poisoned, drifting = ({"inputs": f"a {word}"} for word in (TRIGGERS["raise"], "wolf"))
    drift = {"wrong_token": oracle.token_id("wolf")}
    return await watched(
        Stage(
            stubbed({"batch_seconds": 0.01, "faults": poison}),
            [("HeadscopeErrors", "a text fails, twice a second", sending(poisoned, pause=0.5))],
        ),
        Stage(
            stubbed({"faults": hang}, **hangs),
            [("HeadscopeFallback", "the engine hangs for good", incidents.engine_lost)],
        ),
        Stage(
            stubbed(drift, verify_share=1),
            [("HeadscopeVerificationFailed", "a wrong result", sending(drifting, pause=0.5))],
        ),
        Stage(
            real("--engine", "fake"),
            [("HeadscopeRestarts", "killed and started twice", incidents.killed_again)],
        ),
    )


async def alert_saturated(_: Scale) -> list[Gate]:
    """Watch overloaded services."""
    slow, small = {"batch_seconds": 0.2}, {"max_batch_tokens": 64}
    flood, long = sending(*[incidents.SMALL_FLOOD] * 40), sending(incidents.LONG)
    within_2_s = PATIENT | {"request_timeout_seconds": 2.0}
    unread = stubbed(max_length=512, max_bytes_in_flight=50_000_000, client_timeout_seconds=120)
    return await watched(
        Stage(
            stubbed({"token_seconds": 0.005}, **within_2_s),
            [("HeadscopeSlow", "texts of 1.2 s, of 2 s allowed", long)],
        ),
        Stage(
            stubbed(slow, **small),
            [("HeadscopeQueueSlow", "40 clients, for 45 texts a second", flood)],
        ),
        Stage(
            stubbed(slow, **small, **PATIENT, max_queue_texts=32),
            [("HeadscopeQueueFull", "40 clients of a queue of 32 texts", flood)],
        ),
        Stage(
            unread,
            [("HeadscopeBytesInFlight", "large replies are not read", incidents.unread(60))],
        ),
    )


async def alert_clients(_: Scale) -> list[Gate]:
    """Watch services of faulty clients, and one whose own prediction is wrong."""
    full = incidents.full_of_connections(200, 0.9)
    short = sending(incidents.SHORT)
    return await watched(
        Stage(
            stubbed(),
            [("HeadscopeOpenFiles", "idle connections take 9 of 10 descriptors", full)],
        ),
        Stage(
            stubbed({"batch_seconds": 0.2}),
            [("HeadscopeClientsLeave", "four clients leave after 50 ms", incidents.impatient)],
        ),
        Stage(
            stubbed(bytes_per_float=1),
            [("HeadscopeReplyUnderpredicted", "our prediction is a tenth of it", short)],
            incidents.without_encode,
        ),
    )


@contextlib.asynccontextmanager
async def balanced(_: Path) -> AsyncIterator[process.Service]:
    """Run a balancer before one replica."""
    port = free_port()
    with Replica(incidents.REPLICA, port) as replica, balancing(port) as balancer:
        await asyncio.to_thread(replica.wait_until_ready)
        balancer.names.addresses.append(incidents.REPLICA)
        await asyncio.to_thread(balancer.wait_until_up, 1)
        yield balancer


async def alert_balancers(_: Scale) -> list[Gate]:
    """Watch the shipped balancer."""
    causes = (
        ("HeadscopeReplicasLoseRequests", "a replica hangs up", incidents.replica_hangs_up),
        ("HeadscopeNoReplica", "the only replica is gone", incidents.no_replica),
        ("HeadscopeBalancerDown", "the balancer is killed", incidents.killed),
    )
    requests = "haproxy_frontend_http_requests_total"
    port = attrgetter("metrics_port")
    return await watched(Stage(balanced, causes, job="balancer", port=port, requests=requests))


MODELS = ("one", "two", "three")


def with_models(folder: Path, budget: float | None = None) -> Starting:
    """Serve an artifact and a repository of copies, by fake engines.

    Args:
        folder: folder of the artifact.
        budget: memory budget, as a multiple of the predicted size of a model.

    """
    root, cache = folder.parent / "models", folder.parent / "cache"
    for place in (*(f"{name}/1" for name in MODELS), "one/2", "broken/1"):
        shutil.copytree(folder, root / place)
        manifest = json.loads((root / place / MANIFEST).read_bytes())
        (root / place / MANIFEST).write_text(json.dumps(manifest | {"model": place}))
    (root / "broken/1" / MANIFEST).write_text("{}", encoding="utf-8")
    shutil.copytree(default_checkpoint(), root / "checkpoint")
    cache.mkdir()
    flags = ["--engine", "fake", "--models", str(root), "--admin-keys", "trial"]
    flags += ["--cache-folder", str(cache)]
    if budget:
        size = footprint(load_artifact(folder), Settings(engine="fake")).total
        flags += ["--memory-budget", str(int(budget * size))]
    return real(*flags)(folder)


@contextlib.asynccontextmanager
async def stuck(service: process.Service, folder: Path) -> AsyncIterator[None]:
    """Load a checkpoint while another export into the cache does not end."""
    load = sending({}, path="/v2/repository/models/checkpoint/load")
    with (folder.parent / "cache" / "export.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        async with load(service, folder):
            yield


async def alert_models(_: Scale) -> list[Gate]:
    """Watch services whose models come and go, each with a memory budget of its own."""

    def asking(*names: str) -> Incident:
        return sending(*({"inputs": "a river", "model": name} for name in names), pause=0.2)

    return await watched(
        Stage(
            with_models,
            (
                ("HeadscopeModelLoadFailed", "a version is damaged", asking("broken")),
                ("HeadscopeModelStuck", "another export does not end", stuck),
            ),
        ),
        Stage(
            partial(with_models, budget=1.8),
            [("HeadscopeModelMemory", "a model does not fit beside a pinned one", asking("one"))],
        ),
        Stage(
            partial(with_models, budget=2.2),
            [("HeadscopeModelEvictions", "three models take turns", asking(*MODELS))],
        ),
    )


CONTROL_GROUPS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "-1"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "max"),
)
"""Root folder, limit file, usage file and value for "unlimited", of cgroup versions 1 and 2."""


@contextlib.contextmanager
def limited() -> Iterator[Stage]:
    """Yield the stage of a service in a control group, whose processes must end before the block.

    The service sees no other group, as in a container. In the incident the group's memory is
    limited to a fifteenth above its usage.

    Raises:
        OSError: this user may not make a group.

    """
    root, limit, usage, unlimited = next(
        one for one in CONTROL_GROUPS if (one[0] / "cgroup.procs").exists()
    )
    folder = root / f"headscope-{os.getpid()}-{free_port()}"
    script = f'echo $$ > {folder}/cgroup.procs && mount --bind {folder} {root} && exec "$@"'
    command = ("unshare", "--mount", "sh", "-c", script, "sh", *STUB)

    @contextlib.asynccontextmanager
    async def nearly_full(_service: process.Service, _folder: Path) -> AsyncIterator[None]:
        used = int((folder / usage).read_text())
        (folder / limit).write_text(str(int(used * (1 + 1 / 15))))
        try:
            yield
        finally:
            (folder / limit).write_text(unlimited)

    folder.mkdir()
    try:
        (folder / limit).read_text()
        cause = ("HeadscopeMemory", "its limit comes near", nearly_full)
        yield Stage(stubbed(command=command), [cause])
    finally:
        folder.rmdir()


async def alert_memory(_: Scale) -> list[Gate]:
    """Watch a service in a control group; without permission, return the reason as a gate."""
    try:
        with limited() as stage:
            return await watched(stage)
    except PermissionError as error:
        why = f"not caused, as this user may make no control group: {error.strerror}"
        return [Gate("HeadscopeMemory", "caused, as root", why, passed=True)]
