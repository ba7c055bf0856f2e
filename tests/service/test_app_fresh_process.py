"""A service that answers in a process of its own has loaded and built nothing that it can spare."""

from __future__ import annotations

import pytest

from model.artifact.manifest import Artifact
from testing.process import run_python

HEAVY = {
    "torch",
    "transformers",
    "sentence_transformers",
    "onnx",
    "openvino",
    "onnxscript",
    "huggingface_hub",
    "scipy",
    "sklearn",
    "PIL",
}
FRESH = """
import asyncio, sys
from pathlib import Path
import httpx
from model.artifact.manifest import load_artifact
from service.api.native.rank import RankRequest
from service.app import create_app
from service.settings import Settings

async def main():
    app = create_app(Settings(device="cpu"), [load_artifact(Path(sys.argv[1]))])
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        for route in ("/encode", "/attention"):
            response = await client.post(route, json={"inputs": ["one", "and two"]})
            assert response.status_code == 200, response.text
            assert len(response.json()["results"]) == 2
        assert (await client.get("/health/ready")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200
        assert not RankRequest.__pydantic_complete__, "no request needed its schema"
        documents = await asyncio.gather(*[client.get("/openapi.json") for _ in range(3)])
        assert len({document.text for document in documents}) == 1
        schemas = documents[0].json()["components"]["schemas"]
        assert "RankRequest" in schemas
        assert not [name for name in schemas if "__" in name], "two schemas of one name"

asyncio.run(main())
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.mark.slow
def test_nothing_heavy_is_loaded(artifact: Artifact) -> None:
    done = run_python("-W", "error", "-c", FRESH, artifact.folder)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert {"onnxruntime", "tokenizers", "service"} <= loaded
    assert not loaded & HEAVY
