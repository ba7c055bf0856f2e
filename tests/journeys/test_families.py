"""Families through the whole service over HTTP, against transformers.

Each is a random checkpoint with a tokenizer of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoTokenizer,
    MistralConfig,
    MistralModel,
    ModernBertConfig,
    ModernBertModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from model.artifact.manifest import Artifact
from model.runtimes.registry import load_runtime
from service.engines.onnx import OnnxEngine
from service.engines.runtime import RuntimeEngine
from tests.model.families.parity import SIZES, randomized
from tests.model.texts import TEXTS
from tests.model.tokenizer_folders import VOCAB_SIZE, write_tokenizer_folder
from tests.service.harness import listening

pytestmark = pytest.mark.e2e
LARGE = SIZES | {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 300, "num_hidden_layers": 2}
LONG = "The river runs under the hill, and nobody looks at the water. " * 6
PAIR = ["The animal didn't cross the street", "it was too tired"]
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "TokenizersBackend": (ModernBertConfig, ModernBertModel, {"local_attention": 16}),
    "LlamaTokenizer": (
        MistralConfig,
        MistralModel,
        {"num_key_value_heads": 1, "sliding_window": 20},
    ),
    "XLMRobertaTokenizer": (XLMRobertaConfig, XLMRobertaModel, {"type_vocab_size": 1}),
}


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config, model, changes = FAMILIES[request.param]
    folder: Path = tmp_path_factory.mktemp("a family") / request.param
    write_tokenizer_folder(folder, request.param)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    special = {"pad_token_id": tokenizer.pad_token_id or 0}
    randomized(model(config(**LARGE | changes | special))).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def client(checkpoint: Path, exported: Callable[..., Artifact]) -> Iterator[httpx.Client]:
    """Yield a client of a server in this process, whose PyTorch engine runs here as well."""
    artifact = exported(checkpoint, checkpoint.name)

    def torch_engine(of: Artifact, *_: object) -> RuntimeEngine:
        return RuntimeEngine("torch", load_runtime(of, name="pytorch"), concurrency=1)

    engine = OnnxEngine(artifact, "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.models.start.TorchEngine", torch_engine)
        with (
            listening(artifact, engine, request_timeout_seconds=600) as (_, port),
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600) as client,
        ):
            yield client


def test_every_number_equals_transformers(client: httpx.Client, checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModel.from_pretrained(checkpoint, attn_implementation="eager").eval()
    texts: list[Any] = [*dict.fromkeys(["", LONG, *TEXTS])]
    texts = [text for text in texts if 0 < len(tokenizer(text)["input_ids"]) <= 290]
    assert len(texts) > 20
    for inputs in (texts, [PAIR]):
        encoded = client.post("/encode", json={"inputs": inputs}).json()["results"]
        attended = client.post("/attention", json={"inputs": inputs}).json()["results"]
        for text, vectors, maps in zip(inputs, encoded, attended, strict=True):
            both = [text] if isinstance(text, str) else text
            encoding = tokenizer(*both, return_tensors="pt")
            with torch.no_grad():
                output = model(**encoding, output_attentions=True)
            assert vectors["token_ids"] == encoding["input_ids"][0].tolist()
            state = output.last_hidden_state[0].numpy()
            atol = 1e-4 * np.abs(state).max()
            np.testing.assert_allclose(vectors["embeddings"], state, atol=atol, rtol=0)
            np.testing.assert_allclose(vectors["pooled"], state.mean(axis=0), atol=atol, rtol=0)
            expected = torch.cat(output.attentions).numpy()
            np.testing.assert_allclose(maps["attention"], expected, atol=1e-5)


@pytest.mark.parametrize("inputs", [[LONG, "a short text"], [PAIR]], ids=["texts", "a pair"])
def test_pytorch_agrees(client: httpx.Client, inputs: Any) -> None:
    found = client.post("/verify", json={"inputs": inputs})
    assert found.status_code == 200, found.text
    assert found.json()["passed"], found.text
