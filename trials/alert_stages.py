"""Stages of the alert trials: watched services, and for each alert a failure that causes it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from testing import process
from testing.haproxy import balancing
from testing.process import free_port
from trials import incidents, oracle
from trials.balanced import Replica
from trials.incidents import Incident, normal
from trials.memory_group import Group
from trials.servers import PATIENT, STUB, serve, stub

HANGS = {"batch_timeout_seconds": 1.0, "request_timeout_seconds": 2.0}
Starting = contextlib.AbstractAsyncContextManager[process.Service]
Cause = tuple[str, str, Incident]
"""Alert, description of its cause, and the incident that causes it."""


@dataclass(frozen=True)
class Stage:
    """Service, and the incidents caused in turn."""

    start: Callable[[Path], Starting]
    """Function that starts the service on the artifact in a folder."""
    causes: Sequence[Cause]
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


def workers() -> list[Stage]:
    """Return the stage of the default model in two workers."""
    flood = incidents.FLOOD
    stage = Stage(
        real("--workers", "2", "--api-keys", "trial"),
        (
            ("HeadscopeRefuses", "60 clients of long texts", incidents.clients(60, flood)),
            (
                "HeadscopeUnauthorized",
                "two clients without a key",
                incidents.clients(2, flood, {}),
            ),
            ("HeadscopeEngineRestarted", "PyTorch's process is killed", incidents.engine_killed),
            ("HeadscopeWorkerRestarted", "a worker is killed", incidents.worker_killed),
            ("HeadscopeNotReady", "a worker hangs", incidents.worker_stopped),
            ("HeadscopeWorkerMissing", "a worker cannot start again", incidents.worker_lost),
            ("HeadscopeDown", "the service is killed", incidents.killed),
        ),
    )
    return [stage]


def failures() -> list[Stage]:
    """Return stages of failing engines and services."""
    return [
        Stage(
            stubbed({"batch_seconds": 0.01, "faults": incidents.faults("poison")}),
            [("HeadscopeErrors", "a text fails, twice a second", incidents.triggered("poison"))],
        ),
        Stage(
            stubbed({"faults": incidents.faults("hang")}, fallback="torch", **HANGS),
            [("HeadscopeFallback", "the engine hangs for good", incidents.engine_lost)],
        ),
        Stage(
            stubbed({"wrong_token": oracle.token_id("wolf")}, verify_share=1),
            [
                (
                    "HeadscopeVerificationFailed",
                    "the engine computes a text wrong",
                    incidents.triggered("wolf"),
                )
            ],
        ),
        Stage(
            real("--engine", "fake"),
            [("HeadscopeRestarts", "killed and started twice", incidents.killed_again)],
        ),
    ]


def saturated() -> list[Stage]:
    """Return stages of overloaded services."""
    slow, small = {"batch_seconds": 0.2}, {"max_batch_tokens": 64}
    return [
        Stage(
            stubbed({"token_seconds": 0.005}, **PATIENT | {"request_timeout_seconds": 2.0}),
            [
                (
                    "HeadscopeSlow",
                    "texts of 1.2 s, of 2 s allowed",
                    incidents.clients(1, incidents.LONG),
                )
            ],
        ),
        Stage(
            stubbed(slow, **small),
            [
                (
                    "HeadscopeQueueSlow",
                    "40 clients, for 45 texts a second",
                    incidents.clients(40, incidents.SMALL_FLOOD),
                )
            ],
        ),
        Stage(
            stubbed(slow, **small, **PATIENT, max_queue_texts=32),
            [
                (
                    "HeadscopeQueueFull",
                    "40 clients of a queue of 32 texts",
                    incidents.clients(40, incidents.SMALL_FLOOD),
                )
            ],
        ),
        Stage(
            stubbed(max_length=512, max_bytes_in_flight=50_000_000, client_timeout_seconds=120),
            [("HeadscopeBytesInFlight", "large replies are not read", incidents.unread(60))],
        ),
    ]


def clients() -> list[Stage]:
    """Return stages of faulty clients, and of a fault in the service's own prediction."""
    return [
        Stage(
            stubbed(),
            [
                (
                    "HeadscopeOpenFiles",
                    "idle connections take 9 of 10 descriptors",
                    incidents.full_of_connections(200, 0.9),
                )
            ],
        ),
        Stage(
            stubbed({"batch_seconds": 0.2}),
            [("HeadscopeClientsLeave", "four clients leave after 50 ms", incidents.impatient)],
        ),
        Stage(
            stubbed(command=(sys.executable, "-m", "trials.underpredicting")),
            [
                (
                    "HeadscopeReplyUnderpredicted",
                    "our prediction is a tenth of it",
                    incidents.clients(1, incidents.SHORT),
                )
            ],
            incidents.without_encode,
        ),
    ]


def limited(own: Group) -> Stage:
    """Return the stage of a service in a control group."""
    return Stage(
        stubbed(command=own.starting(STUB)),
        [("HeadscopeMemory", "its limit comes near", incidents.nearly_full(own))],
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


def balancers() -> list[Stage]:
    """Return the stage of the shipped balancer."""
    stage = Stage(
        balanced,
        (
            ("HeadscopeReplicasLoseRequests", "a replica hangs up", incidents.replica_hangs_up),
            ("HeadscopeNoReplica", "the only replica is gone", incidents.no_replica),
            ("HeadscopeBalancerDown", "the balancer is killed", incidents.killed),
        ),
        job="balancer",
        port=attrgetter("metrics_port"),
        requests="haproxy_frontend_http_requests_total",
    )
    return [stage]
