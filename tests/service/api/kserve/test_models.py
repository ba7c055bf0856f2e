"""Metadata and readiness of models, by names with slashes."""

from __future__ import annotations

import httpx
import pytest

from model.artifact.manifest import Artifact
from service.api.kserve.outputs import DATATYPES, HEAD_VECTORS
from service.models.state import state_of
from tests.service.api.kserve.wire import in_json
from tests.service.harness import serving
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio
NAME = "sentence-transformers/all-MiniLM-L6-v2"


async def test_metadata_and_readiness_of_several(artifact: Artifact) -> None:
    artifacts = [variant(artifact, "a", 8), variant(artifact, NAME, 16)]
    async with serving(artifacts, [fake_of(one) for one in artifacts]) as client:
        for path in (NAME, NAME.replace("/", "%2F"), f"{NAME}/versions/1"):
            response = await client.get(f"/v2/models/{path}")
            reply = response.json()
            assert reply.keys() == {"name", "versions", "platform", "inputs", "outputs"}
            assert (reply["name"], reply["versions"]) == (NAME, ["1"])
            assert reply["platform"] == "onnxruntime_onnx"
            assert reply["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
            shapes = {output["name"]: output["shape"] for output in reply["outputs"]}
            assert shapes.keys() == DATATYPES.keys() - HEAD_VECTORS.keys()
            assert (shapes["embeddings"], shapes["pooled"]) == ([-1, 16], [-1, 16])
            assert (await client.get(f"/v2/models/{path}/ready")).content == b""
        body = in_json(["a"], [1])
        found = [(await client.post(f"/v2/models/{x}/infer", json=body)) for x in ("a", NAME)]
        assert [one.json()["outputs"][0]["shape"] for one in found] == [[1, 8], [1, 16]]
        for method, path in (("GET", "x"), ("GET", "x/ready"), ("POST", "x/infer")):
            unknown = await client.request(method, f"/v2/models/{path}", json=body)
            assert (unknown.status_code, unknown.json().keys()) == (404, {"error"})


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "m/infer", 405),
        ("POST", "m", 405),
        ("POST", "m/ready", 405),
        ("GET", "m/config", 404),
        ("GET", "m/trace/setting", 404),
        ("GET", "m/versions/2", 404),
        ("GET", "m/versions/2/ready", 404),
        ("GET", "", 400),
    ],
)
async def test_what_is_not_there(
    client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    response = await client.request(method, f"/v2/models/{path}")
    assert (response.status_code, response.json().keys()) == (status, {"error"})


async def test_a_model_is_not_ready_while_the_service_stops(artifact: Artifact) -> None:
    async with serving(artifact, fake_of(artifact)) as client:
        assert (await client.get("/v2/models/any/ready")).headers["x-model"] == "small"
        state_of(client.app).readiness.draining = True
        refused = await client.get("/v2/models/any/ready")
        assert (refused.status_code, refused.json().keys()) == (400, {"error"})
