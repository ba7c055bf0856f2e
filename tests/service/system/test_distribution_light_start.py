"""An artifact is served without the exporter's packages, which the wheel does not require."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from model.export.serving import serving_copy
from service.system.distribution import EXTRAS
from testing.process import run_python

pytestmark = pytest.mark.slow

SERVE = """
import asyncio, importlib.metadata, json, sys
import httpx  # the test's own client; the service must not import it
artifact, *missing = sys.argv[1:]
for name in missing:
    sys.modules[name] = None  # an import raises ModuleNotFoundError
real = importlib.metadata.version
def version(name):
    if name in missing:
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)
importlib.metadata.version = version

from service.app import create_app
from service.artifacts.opening import open_artifact
from service.settings import Settings

async def main():
    settings = Settings(artifact=artifact, device="cpu")
    app = create_app(settings, [open_artifact(settings)])
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        for route in ("/encode", "/attention"):
            response = await client.post(route, json={"inputs": "Hello world"})
            assert response.status_code == 200, response.text
            print(json.dumps(response.json()["results"][0]))

asyncio.run(main())
"""


def test_an_artifact_is_served_without_what_only_extras_bring(
    artifact: Artifact, tmp_path: Path
) -> None:
    folder = serving_copy(artifact, tmp_path / "serving").folder
    # FastAPI depends on the API of OpenTelemetry
    missing = sorted(EXTRAS.keys() - {"onnxruntime", "opentelemetry"})
    done = run_python("-c", SERVE, folder, *missing)
    assert done.returncode == 0, done.stderr
    encoded, attended = map(json.loads, done.stdout.splitlines())
    assert sum(x * x for x in encoded["pooled"]) > 0
    maps = attended["attention"]
    assert all(abs(sum(row) - 1) < 1e-5 for layer in maps for head in layer for row in head)
