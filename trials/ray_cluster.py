"""A Ray cluster on this machine, and the stub service that its replicas run."""

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
from trials.engines import TrialEngine

ROOT = Path(__file__).resolve().parents[1]
ENGINE, JOURNAL = "TRIAL_ENGINE", "TRIAL_JOURNAL"
STORE_BYTES = 100 * 2**20
REPLICA = "ray::ServeReplica"


@contextlib.contextmanager
def cluster(cpus: int) -> Iterator[None]:
    """A head, its store, and room for so many processors' worth of actors."""
    os.environ |= {
        "PYTHONPATH": str(ROOT),
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # where cores are busy; 5 s by default
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
    """Where other processes join the cluster."""
    return str(ray.get_runtime_context().gcs_address)


@contextlib.contextmanager
def proxy() -> Iterator[int]:
    """Ray Serve; gives the port of its proxy."""
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        yield port
    finally:
        serve.shutdown()


def run_stub(
    engine: dict[str, Any], journal: Path, settings: dict[str, Any], **options: Any
) -> None:
    """Have Serve run stub replicas, and wait until they do; a second call changes them.

    Args:
        engine: options of `TrialEngine`.
        journal: folder for what each replica has begun and ended.
        settings: of the service.
        **options: of the deployment.

    """
    variables = {f"HEADSCOPE_{name.upper()}": str(value) for name, value in settings.items()}
    variables |= {ENGINE: json.dumps(engine), JOURNAL: str(journal)}
    actor = {"num_cpus": 1, "runtime_env": {"env_vars": variables}}
    serve.run(application(build, ray_actor_options=actor, **options), name="headscope")


def build() -> FastAPI:
    """The service over a `TrialEngine`, in a replica's process."""
    settings = replica.replica_settings(log_level="error")
    (artifact,) = open_served(settings, lambda _: None)
    engine = TrialEngine(artifact.manifest.config, **json.loads(os.environ[ENGINE]))
    app = replica.served_application(create_app(settings, [artifact], [engine]))
    app.add_middleware(Journal, path=Path(os.environ[JOURNAL]) / str(os.getpid()))
    return app


class Journal:
    """Writes the id of each request down when it begins, and when its reply is complete."""

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
    """Ids that any replica but one has begun."""
    files = [path for path in journal.iterdir() if path.name != str(besides)]
    return {line[1:] for path in files for line in path.read_text().split() if line[0] == "+"}


def answered(journal: Path, pid: int) -> bool:
    """Whether a replica has ended a request."""
    path = journal / str(pid)
    return path.exists() and any(line[0] == "-" for line in path.read_text().split())


def wait_for_end(name: str) -> None:
    """Wait until no process of this title runs.

    Raises:
        psutil.TimeoutExpired: one does not end.

    """
    for process in workers(name):
        process.wait(HANG_SECONDS)


def workers(name: str) -> list[psutil.Process]:
    """Processes of this cluster whose title begins so."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if " ".join(process.cmdline()).startswith(name):
                found.append(process)
    return found
