"""Change of a model's version under Ray Serve: the configuration changes while requests run.

The two versions have vectors of different sizes and other fingerprints. A reply belongs to the old
version until the change begins, and to the new one from its end on; between, to either.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from model.artifact.manifest import MANIFEST
from testing.client import Connection, Lost, request
from trials import ray_cluster as ray
from trials.gates import Gate, Scale, at_least, exactly
from trials.ray_serve import CAPACITY, ENGINE, LOAD, ONE_A_BATCH, SETTLE_SECONDS, Arrivals

SIZES = {"old": 24, "new": 36}
"""Hidden size of each version."""
BODY = {"inputs": "the water", "outputs": ["pooled"], "normalize": False}


@dataclass
class Versions(Arrivals):
    """Requests whose replies show their version."""

    versions: dict[str, str] = field(default_factory=dict)
    """Version of each reply, by the request's id."""
    fingerprints: dict[str, set[str | None]] = field(default_factory=dict)
    """Fingerprints of the replies of each version."""

    async def _ask(self, name: str) -> None:
        self.sent[name] = time.monotonic()
        try:
            async with await Connection.to(self.port) as connection:
                reply = await connection.ask(request("/encode", BODY, {"x-request-id": name}))
        except (Lost, OSError):
            self.outcomes[name] = "lost"
        else:
            self.outcomes[name] = str(reply.status)
            if reply.status == 200:
                size = len(reply.json()["results"][0]["pooled"])
                version = next(one for one, own in SIZES.items() if own == size)
                self.versions[name] = version
                found = self.fingerprints.setdefault(version, set())
                found.add(reply.header("x-model-fingerprint"))
        self.answered[name] = time.monotonic()

    def between(self, begin: float, end: float) -> set[str]:
        """Return the versions of the replies to requests sent and answered within a time."""
        return {
            version
            for name, version in self.versions.items()
            if begin <= self.sent[name] and self.answered[name] <= end
        }


def version(root: Path, name: str) -> Path:
    """Return a copy of the artifact whose vectors have the version's size."""
    folder = Path(shutil.copytree(os.environ["HEADSCOPE_ARTIFACT"], root / name))
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["config"]["hidden_size"] = SIZES[name]
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def deploy(root: Path, journal: Path, name: str) -> None:
    """Deploy a version by its configuration, and wait until all replicas have it."""
    settings = ONE_A_BATCH | {"artifact": root / name}
    ray.run_stub(ENGINE, journal, settings, num_replicas=2)


async def _changed(port: int, root: Path, journal: Path) -> list[Gate]:
    load = Versions(port, LOAD * CAPACITY)
    async with load.running():
        begun = time.monotonic()
        await asyncio.sleep(SETTLE_SECONDS)
        changing = time.monotonic()
        await asyncio.to_thread(deploy, root, journal, "new")
        changed = time.monotonic()
        await asyncio.sleep(SETTLE_SECONDS)
    fingerprints = [found for found in load.fingerprints.values() if len(found) == 1]
    return [
        exactly(
            "another version by the configuration, under load: outcomes",
            {"200"},
            {*load.outcomes.values()},
        ),
        at_least(
            "… requests sent while it changed",
            1,
            sum(changing < at < changed for at in load.sent.values()),
        ),
        exactly("… versions of the replies before", {"old"}, load.between(begun, changing)),
        exactly(
            "… versions of the replies after", {"new"}, load.between(changed, time.monotonic())
        ),
        exactly("… versions with one fingerprint", 2, len(fingerprints)),
    ]


def run(_: Scale) -> list[Gate]:
    """Change the version in a cluster of two replicas."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as journal,
        ray.cluster(cpus=5),
        ray.proxy() as port,
    ):
        root = Path(folder)
        for name in SIZES:
            version(root, name)
        deploy(root, Path(journal), "old")
        return asyncio.run(_changed(port, root, Path(journal)))
