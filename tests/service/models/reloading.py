"""Services whose file of settings changes while they run, with fake engines."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from model.artifact.manifest import Artifact, load_artifact
from service.app import create_app
from service.health.peers import Peers
from service.models.reload import Reload
from service.models.state import ServiceState, state_of
from service.settings import Settings
from service.settings.served import served
from tests.service.harness import Client
from tests.service.repositories import ADMIN, add

HEAD = 'engine = "fake"\nadmin-keys = "admin"\n'


class Configured:
    """Folder of artifacts `one`, `two` and `three`, and a file of settings."""

    def __init__(self, folder: Path, artifact: Artifact) -> None:
        self.folder = folder
        self.path = folder / "headscope.toml"
        for name in ("one", "two", "three"):
            add(folder, name, artifact)

    def write(self, *models: str, top: str = "", alias: str = "") -> None:
        """Write the file; each model is NAME=ARTIFACT and further keys, on a line."""
        tables = []
        for model in models:
            name, _, keys = model.partition("=")
            place, _, more = keys.partition(",")
            tables.append(
                f'model.{name} = {{ artifact = "{self.folder / place}"{more and ","}{more} }}'
            )
        aliases = f"alias = {{ {alias} }}\n" if alias else ""
        self.path.write_text(HEAD + top + "\n" + aliases + "\n".join(tables), encoding="utf-8")

    @contextlib.asynccontextmanager
    async def serving(self, peers: Peers | None = None, **flags: Any) -> AsyncIterator[Client]:
        """Yield a client of an application with the settings of the file."""
        given = {"config": self.path, **flags}
        settings = Settings(**given).model_copy(update={"given": given})
        artifacts = [load_artifact(Path(source)) for source in served(settings)]
        app = create_app(settings, artifacts, peers=peers)
        async with app.router.lifespan_context(app), Client(app) as client:
            yield client


async def reload(client: Client) -> httpx.Response:
    return await client.post("/config/reload", headers=ADMIN)


def state(client: Client) -> ServiceState:
    return state_of(client.app)


def reload_of(client: Client) -> Reload:
    found: Reload = client.app.state.reload
    return found
