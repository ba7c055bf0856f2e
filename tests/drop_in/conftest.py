"""Service of an embedder and a ranker behind a real port, and the Python of its clients."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from model.artifact.manifest import Artifact
from service.engines.contract import Engine
from service.engines.onnx import OnnxEngine
from tests.service.api.tei.tasks import RANKS, ScoringEngine
from tests.service.harness import listening
from tests.service.pictures import picture, pictures_of
from tests.service.several import fake_of, variant

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv-clients" / "bin" / "python"
KEY = "a-key"
EMBEDDER, RANKER, PICTURES = "team/embedder", "team/ranker", "team/pictures"
TEXTS = ["The animal didn't cross the street.", "töö tired 🙂", "a", "b " * 40]
QUERY = "what is tired"
LONG = "word " * 1000
FILES = [base64.b64encode(picture(seed)).decode() for seed in (1, 2)]
"""Files of pictures in base64."""


@dataclass(frozen=True)
class Served:
    """Running service, and the results of the scripts that called it."""

    url: str
    results: dict[tuple[str, Path], dict[str, Any]] = field(default_factory=dict)
    """Result of each finished script."""

    def ask(self, route: str, **body: Any) -> Any:
        """Return the reply of a native route."""
        reply = httpx.post(self.url + route, json=body, headers={"authorization": f"Bearer {KEY}"})
        assert reply.status_code == 200, reply.text
        return reply.json()

    def run(self, script: str, python: Path = PYTHON) -> dict[str, Any]:
        """Return the result of a client's script, which runs once in each environment."""
        if not python.exists():
            pytest.skip("make clients installs what it needs")
        if result := self.results.get((script, python)):
            return result
        asked = {
            "url": self.url,
            "model": EMBEDDER,
            "ranker": RANKER,
            "key": KEY,
            "texts": TEXTS,
            "query": QUERY,
            "long": LONG,
            "pictures": PICTURES,
            "files": FILES,
        }
        inherited = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
        environment = {**inherited, **QUIET, "CO_API_URL": self.url}
        command = [str(python), str(HERE / "scripts" / f"{script}.py"), json.dumps(asked)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=240, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr[-3000:]
        result = json.loads(done.stdout.splitlines()[-1])
        return self.results.setdefault((script, python), result)


QUIET = {
    "ANONYMIZED_TELEMETRY": "False",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "HF_HUB_OFFLINE": "0",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "MEM0_TELEMETRY": "False",
    "NO_PROXY": "127.0.0.1",
    "OTEL_SDK_DISABLED": "true",
    "RAGAS_DO_NOT_TRACK": "true",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""Environment variables that switch off the clients' telemetry and downloads."""


@pytest.fixture(scope="session")
def served(exported: Callable[..., Artifact], small_checkpoint: Path) -> Iterator[Served]:
    """Serve the small model on ONNX Runtime, a ranker by token ids, and a model of pictures."""
    artifact = exported(small_checkpoint, "small")
    size = artifact.manifest.config.hidden_size
    models = [variant(artifact, EMBEDDER, size), variant(artifact, RANKER, size, RANKS)]
    models.append(pictures_of(artifact, PICTURES))
    engines: list[Engine] = [OnnxEngine(artifact, "cpu", threads=1)]
    engines += [ScoringEngine(models[1].manifest.config), fake_of(models[2])]
    with listening(models, engines, api_keys=KEY) as (_, port):
        yield Served(f"http://127.0.0.1:{port}")
