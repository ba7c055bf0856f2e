"""A service over `TrialEngine`: `python -m trials.stub < stub.json`, see `Stub`.

It is the application and the server that ship; only the engine is not. `GET /trial` tells what the
engine has done so far.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from pydantic import BaseModel

from service.app import create_app
from service.artifacts import open_artifact
from service.process.listener import bound
from service.process.server import Server, end
from service.settings import Settings
from trials.engines import TrialEngine
from trials.oracle import sized


class Stub(BaseModel):
    """What to serve."""

    engine: dict[str, Any] = {}
    """Options of `TrialEngine`."""
    settings: dict[str, Any] = {}
    models: dict[str, int] = {}
    """Hidden sizes of several models, by name; the settings' own one alone when empty."""


def main() -> int:
    stub = Stub.model_validate_json(sys.stdin.read())
    settings = Settings(log_level="error", **stub.settings)
    artifact = open_artifact(settings)
    faults = {int(token): fault for token, fault in stub.engine.pop("faults", {}).items()}
    artifacts = [sized(artifact, name, size) for name, size in stub.models.items()] or [artifact]
    engines = [TrialEngine(one.manifest.config, faults=faults, **stub.engine) for one in artifacts]
    app = create_app(settings, artifacts, engines)

    def counts() -> dict[str, int]:
        """What all engines have done, also what none has."""
        done = Counter[str]()
        for one in engines:
            done.update(one.counts)
        return done

    app.add_api_route("/trial", counts)
    with bound(settings.host, settings.port) as sockets:
        server = Server(app, settings)
        server.run(sockets)
    return end(server)


if __name__ == "__main__":
    sys.exit(main())
