"""Stages of the alert trials for models that come and go."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from benchmarks.harness.service import default_checkpoint
from model.artifact.manifest import MANIFEST, load_artifact
from service.artifacts.footprint import footprint
from service.settings import Settings
from testing.process import Service
from trials.alert_stages import Stage, Starting
from trials.incidents import Incident, asking, meanwhile
from trials.servers import serve

NAMES = ("one", "two", "three")


def repository(budget: float | None = None) -> Callable[[Path], Starting]:
    """Return a function that serves an artifact and a repository of copies, by fake engines.

    Args:
        budget: memory budget, as a multiple of the predicted size of a model.

    """

    def start(folder: Path) -> Starting:
        root = folder.parent / "models"
        for place in (*(f"{name}/1" for name in NAMES), "one/2", "broken/1"):
            shutil.copytree(folder, root / place)
            manifest = json.loads((root / place / MANIFEST).read_bytes())
            (root / place / MANIFEST).write_text(json.dumps(manifest | {"model": place}))
        (root / "broken/1" / MANIFEST).write_text("{}", encoding="utf-8")
        shutil.copytree(default_checkpoint(), root / "checkpoint")
        cache = _cache_beside(folder)
        cache.mkdir()
        flags = ["--engine", "fake", "--models", str(root), "--admin-keys", "trial"]
        flags += ["--cache-folder", str(cache)]
        if budget:
            size = footprint(load_artifact(folder), Settings(engine="fake")).total
            flags += ["--memory-budget", str(int(budget * size))]
        return serve("--artifact", str(folder), *flags)

    return start


def in_turn(*names: str) -> Incident:
    """Return the incident of a client of each model."""

    def incident(service: Service, _: Path) -> contextlib.AbstractAsyncContextManager[None]:
        bodies = [{"inputs": "a river", "model": name} for name in names]
        return meanwhile(*(asking(service, body, pause=0.2) for body in bodies))

    return incident


@contextlib.asynccontextmanager
async def stuck(service: Service, folder: Path) -> AsyncIterator[None]:
    """Load a checkpoint while another export into the cache does not end."""
    with (_cache_beside(folder) / "export.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        async with meanwhile(asking(service, {}, "/v2/repository/models/checkpoint/load")):
            yield


def _cache_beside(folder: Path) -> Path:
    return folder.parent / "cache"


def stages() -> list[Stage]:
    """Return the stages, each with a memory budget of its own."""
    return [
        Stage(
            repository(),
            (
                ("HeadscopeModelLoadFailed", "a version is damaged", in_turn("broken")),
                ("HeadscopeModelStuck", "another export does not end", stuck),
            ),
        ),
        Stage(
            repository(1.8),
            [("HeadscopeModelMemory", "a model does not fit beside a pinned one", in_turn("one"))],
        ),
        Stage(
            repository(2.2),
            [("HeadscopeModelEvictions", "three models take turns", in_turn(*NAMES))],
        ),
    ]
