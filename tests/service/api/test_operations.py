"""What a service says of itself in `GET /info`."""

from __future__ import annotations

import httpx
import pytest

from model.artifact.manifest import Artifact

pytestmark = pytest.mark.anyio


async def test_info(client: httpx.AsyncClient, artifact: Artifact) -> None:
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
        "weight_bits": None,
        "artifact_sha256": artifact.sha256,
        "model_sha": artifact.manifest.files["weights.safetensors"].sha256,
        "prompts": [],
        "default_prompt_name": None,
        "embedding_dimension": 128,
        "truncate_dim": None,
        "matryoshka_dims": [],
        "similarity_fn_name": "cosine",
    }
    assert {name: info[name] for name in said} == said
    assert info["verification"]["passed"] is True
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
