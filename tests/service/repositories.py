"""Model repositories for the service's tests."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from model.artifact.manifest import MANIFEST, Artifact
from service.app import create_app
from service.models.control import ModelControl
from service.models.state import state_of
from service.settings import Settings
from tests.service.harness import Client

ADMIN = {"authorization": "Bearer admin"}
FINGERPRINT = "x-model-fingerprint"


def add(root: Path, place: str, artifact: Artifact) -> Path:
    """Copy an artifact to a place of a repository; its name there gives it a hash of its own."""
    folder = root / place
    shutil.copytree(artifact.folder, folder)
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    manifest["model"] = place
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return folder


@contextlib.asynccontextmanager
async def serving_repository(root: Path, **settings: Any) -> AsyncIterator[Client]:
    """Yield a client of an application that loads models of a repository, with fake engines."""
    chosen = {"engine": "fake", "admin_keys": "admin", "models": root} | settings
    app = create_app(Settings(**chosen), [])
    async with app.router.lifespan_context(app), Client(app) as client:
        yield client


def control_of(client: Client) -> ModelControl:
    return state_of(client.app).control


async def encode(client: Client, model: str | None, **headers: str) -> httpx.Response:
    body = {"inputs": "a b", "outputs": ["pooled"]} | ({"model": model} if model else {})
    return await client.post("/encode", json=body, headers=headers)


async def load(client: Client, name: str, **body: object) -> httpx.Response:
    return await client.put(f"/models/{name}", json=body, headers=ADMIN)


async def states(client: Client, name: str) -> dict[str, str]:
    """Return the state of each version of a model."""
    versions = (await client.get(f"/models/{name}")).json()["versions"]
    return {one["version"]: one["state"] for one in versions}
