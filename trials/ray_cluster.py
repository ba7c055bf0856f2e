"""Ray cluster on this machine, and the stub service of its replicas."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import ray
from fastapi import FastAPI
from ray import serve
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy.ray import replica
from deploy.ray.serving import application
from service.app import create_app
from service.cli.serve import open_served
from testing.client import HANG_SECONDS
from testing.process import free_port
from trials.stub import TrialEngine

ROOT = Path(__file__).resolve().parents[1]
ENGINE, JOURNAL = "TRIAL_ENGINE", "TRIAL_JOURNAL"
STORE_BYTES = 100 * 2**20
REPLICA = "ray::ServeReplica"


@contextlib.contextmanager
def cluster(cpus: int) -> Iterator[None]:
    """Run a cluster with a head, a store, and `cpus` processors for actors during the block."""
    os.environ |= {
        "PYTHONPATH": str(ROOT),
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # for busy cores; the default is 5 s
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    ray.init(
        num_cpus=cpus,
        object_store_memory=STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="warning",
    )
    try:
        yield
    finally:
        ray.shutdown()


def address() -> str:
    """Return the address at which other processes join the cluster."""
    return str(ray.get_runtime_context().gcs_address)


@contextlib.contextmanager
def proxy() -> Iterator[int]:
    """Run Ray Serve during the block, and yield the port of its proxy."""
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        yield port
    finally:
        serve.shutdown()


def run_stub(
    engine: dict[str, Any], journal: Path, settings: dict[str, Any], **options: Any
) -> None:
    """Deploy stub replicas by Serve, and wait until they run; a second call changes them.

    Args:
        engine: options of `TrialEngine`.
        journal: folder for the ids of requests that each replica has begun and ended.
        settings: settings of the service.
        **options: options of the deployment.

    """
    variables = {f"HEADSCOPE_{name.upper()}": str(value) for name, value in settings.items()}
    variables |= {ENGINE: json.dumps(engine), JOURNAL: str(journal)}
    actor = {"num_cpus": 1, "runtime_env": {"env_vars": variables}}
    serve.run(application(build, ray_actor_options=actor, **options), name="headscope")


def build() -> FastAPI:
    """Build the service over a `TrialEngine`, in a replica's process."""
    settings = replica.replica_settings(log_level="error")
    (artifact,) = open_served(settings, lambda _: None)
    engine = TrialEngine(artifact.manifest.config, **json.loads(os.environ[ENGINE]))
    app = replica.served_application(create_app(settings, [artifact], [engine]))
    app.add_middleware(Journal, path=Path(os.environ[JOURNAL]) / str(os.getpid()))
    return app


class Journal:
    """Middleware that records the id of each request when it begins and when its reply ends."""

    def __init__(self, app: ASGIApp, path: Path) -> None:
        self.app = app
        self._file = path.open("a", buffering=1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        name = dict(scope["headers"])[b"x-request-id"].decode()

        async def noted(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self._file.write(f"-{name}\n")

        self._file.write(f"+{name}\n")
        await self.app(scope, receive, noted)


def begun(journal: Path, besides: int) -> set[str]:
    """Return the ids of requests begun by any replica except one."""
    files = [path for path in journal.iterdir() if path.name != str(besides)]
    return {line[1:] for path in files for line in path.read_text().split() if line[0] == "+"}


def answered(journal: Path, pid: int) -> bool:
    """Return whether a replica has answered a request."""
    path = journal / str(pid)
    return path.exists() and any(line[0] == "-" for line in path.read_text().split())


def wait_for_end(name: str) -> None:
    """Wait until no process whose title begins with `name` runs.

    Raises:
        psutil.TimeoutExpired: a process does not end.

    """
    for process in workers(name):
        process.wait(HANG_SECONDS)


def workers(name: str) -> list[psutil.Process]:
    """Return this cluster's processes whose title begins with `name`."""
    processes = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if " ".join(process.cmdline()).startswith(name):
                processes.append(process)
    return processes
