"""Service over `TrialEngine`: `python -m trials.stub < stub.json`, see `Stub`.

The application and the server are the shipped ones; only the engine is not. `GET /trial` returns
the engine's counters.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from pydantic import BaseModel

from model.artifact.manifest import Artifact
from service.app import create_app
from service.artifacts.opening import open_artifact
from service.engines.contract import Engine
from service.process.listener import bound
from service.process.server import Server, end
from service.settings import Settings
from trials.engines import DriftingEngine, TrialEngine
from trials.oracle import sized


class Stub(BaseModel):
    """Engine, settings and models to serve."""

    engine: dict[str, Any] = {}
    """Options of `TrialEngine`; or only `wrong_token`, for `DriftingEngine`."""
    settings: dict[str, Any] = {}
    models: dict[str, int] = {}
    """Hidden sizes of several models by name; if empty, only the settings' own model is served."""


def _engine(artifact: Artifact, wrong_token: int | None = None, **options: Any) -> Engine:
    if wrong_token is not None:
        engine = DriftingEngine(artifact)
        engine.wrong_token = wrong_token
        return engine
    faults = {int(token): fault for token, fault in options.pop("faults", {}).items()}
    return TrialEngine(artifact.manifest.config, faults=faults, **options)


def main() -> int:
    stub = Stub.model_validate_json(sys.stdin.read())
    settings = Settings(log_level="error", **stub.settings)
    artifact = open_artifact(settings)
    artifacts = [sized(artifact, name, size) for name, size in stub.models.items()] or [artifact]
    engines = [_engine(one, **stub.engine) for one in artifacts]
    app = create_app(settings, artifacts, engines)

    def counts() -> dict[str, int]:
        """Return the sum of all engines' counters, zeros included."""
        done = Counter[str]()
        for one in engines:
            if isinstance(one, TrialEngine):
                done.update(one.counts)
        return done

    app.add_api_route("/trial", counts)
    with bound(settings.host, settings.port) as sockets:
        server = Server(app, settings)
        server.run(sockets)
    return end(server)


if __name__ == "__main__":
    sys.exit(main())
