"""Contents of `GET /info`."""

from __future__ import annotations

import httpx
import pytest

from model.artifact.manifest import Artifact
from model.numerics.task_head import TaskConfig
from service.api.operations import model_type
from service.engines.contract import BatchCost
from service.engines.onnx import OnnxEngine
from tests.service.harness import serving
from tests.service.logged import Log

pytestmark = pytest.mark.anyio


async def test_info(
    client: httpx.AsyncClient,
    artifact: Artifact,
    onnx_engine: OnnxEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onnx_engine, "cost", BatchCost())  # another test may have measured it
    info = (await client.get("/info")).json()
    said = {
        "model_id": "small",
        "max_input_length": 512,
        "max_client_batch_size": 512,
        "max_characters": 64 * 512,
        "layers": 2,
        "heads": 2,
        "hidden_size": 128,
        "engine": "onnx",
        "provider": "CPUExecutionProvider",
        "precision": "fp32",
        "precision_note": None,
        "weight_bits": None,
        "batch_cost_ms": None,
        "artifact_sha256": artifact.sha256,
        "model_sha": artifact.manifest.files["weights.safetensors"].sha256,
        "prompts": [],
        "default_prompt_name": None,
        "embedding_dimension": 128,
        "vector_ranges": True,
        "truncate_dim": None,
        "matryoshka_dims": [],
        "similarity_fn_name": "cosine",
    }
    assert {name: info[name] for name in said} == said
    assert info["verification"]["vectors"] == {"passed": True, "failed": None}
    assert info["verification"]["heads"] == {"passed": True, "failed": None}
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}


async def test_info_has_the_measured_cost_of_a_batch(artifact: Artifact) -> None:
    engine = OnnxEngine(artifact)
    engine.cost = BatchCost(0.001, 0.0001, 0.00002)
    async with serving(artifact, engine) as client:
        info = (await client.get("/info")).json()
    assert info["batch_cost_ms"] == {"fixed": 1.0, "token": 0.1, "padding": 0.02}


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (
            TaskConfig(
                kind="sequence_classification", outputs=2, labels=("no", "yes"), pooling="cls"
            ),
            {"classifier": {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}},
        ),
        (
            TaskConfig(kind="sequence_classification", outputs=1, labels=("x",), pooling="cls"),
            {"reranker": {"id2label": {"0": "x"}, "label2id": {"x": 0}}},
        ),
        (TaskConfig(kind="sparse", outputs=9, pooling="max"), {"embedding": {"pooling": "splade"}}),
        (
            TaskConfig(kind="token_classification", outputs=2, pooling="none"),
            {"embedding": {"pooling": "mean"}},
        ),
    ],
)
def test_the_kind_of_a_model_is_teis(
    artifact: Artifact, task: TaskConfig, expected: object
) -> None:
    assert model_type(artifact.manifest.model_copy(update={"task": task})) == expected


async def test_a_precision_that_the_processor_makes_slow_is_told_at_start_and_in_info(
    artifact: Artifact, onnx_engine: OnnxEngine, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.artifacts.precision.has_products", lambda _: False)
    note = "no fast fp32 products on this processor: fp32 is likely faster"
    async with serving(artifact, onnx_engine) as client:
        assert (await client.get("/info")).json()["precision_note"] == note
    assert [each["message"] for each in log.objects if each["level"] == "warning"] == [note]
