"""Checkpoints with modules after their pooling, from the folder to the replies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from torch import nn
from torch.nn import functional

from model.artifact.manifest import Artifact
from model.export.serving import serving_copy
from model.numerics.batch import pack
from model.packing import PackedBatch
from model.runtimes.capabilities import Decomposition
from model.runtimes.pytorch import load_modules
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.errors import NotExported
from service.files.bench import embed
from service.files.local import LocalEncoder
from service.files.options import Encoding
from service.inference.core import Inference
from service.models.state import state_of
from service.settings import Settings
from tests.service.harness import CONFIG, serving

pytestmark = pytest.mark.anyio


TRANSFORMER_FILES = (
    "config.json",
    "model.safetensors",
    "sentence_bert_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
TEXTS = ["the cat.", "a cat and the cat", "", "q"]


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several poolings, Dense, LayerNorm and Normalize, over a Transformer in its own folder."""
    torch.manual_seed(3)
    dense = Dense(24, 30, activation_function=nn.GELU())
    norm = LayerNorm(30)
    nn.init.normal_(norm.norm.weight)
    pooling = Pooling(12, ("mean", "weightedmean"), include_prompt=False)
    folder = tmp_path_factory.mktemp("modules")
    SentenceTransformer(
        modules=[Transformer(str(tiny_checkpoint)), pooling, dense, norm, Normalize()],
        prompts={"query": "the query: ", "document": ""},
        default_prompt_name="query",
        truncate_dim=10,
        similarity_fn_name="dot",
        device="cpu",
    ).save(str(folder))
    inside = folder / "0_Transformer"
    inside.mkdir()
    for name in TRANSFORMER_FILES:
        (folder / name).rename(inside / name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = inside.name
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


@pytest.fixture(scope="module")
def theirs(checkpoint: Path) -> SentenceTransformer:
    return SentenceTransformer(str(checkpoint), device="cpu")


@pytest.fixture(scope="module")
def module_artifact(checkpoint: Path, exported: Callable[..., Artifact]) -> Artifact:
    return exported(checkpoint, "modules")


@pytest.fixture(scope="module")
def engine(module_artifact: Artifact) -> OnnxEngine:
    return OnnxEngine(module_artifact, "cpu", threads=1)


@pytest.fixture(scope="module")
async def client(
    module_artifact: Artifact, engine: OnnxEngine, anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(module_artifact, engine) as client:
        yield client


async def pooled(client: httpx.AsyncClient, **body: Any) -> np.ndarray:
    reply = await client.post("/encode", json={"inputs": TEXTS, **body})
    assert reply.is_success, reply.text
    return np.array([result["pooled"] for result in reply.json()["results"]], np.float32)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


@pytest.mark.slow
async def test_spans_pass_the_modules_and_leave_out_the_prompt(
    client: httpx.AsyncClient, theirs: SentenceTransformer
) -> None:
    """A span's tokens, encoded after the prompt, pass sentence-transformers' own modules."""
    text, spans, prompt = TEXTS[1], [[0, 5], [6, 17]], "the query: "
    inputs = theirs.tokenizer(prompt + text, return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0].tolist()
    body = {"inputs": text, "spans": [spans]}
    (result,) = (await client.post("/encode", json=body)).json()["results"]
    with torch.no_grad():
        states = theirs[0].auto_model(**inputs).last_hidden_state[0]
        for span, found in zip(spans, result["span_vectors"], strict=True):
            first, last = (len(prompt) + character for character in span)
            own = [
                n for n, (start, end) in enumerate(offsets) if max(start, first) < min(end, last)
            ]
            features = {"token_embeddings": states[None, own]}
            features["attention_mask"] = torch.ones(1, len(own))
            for module in [*theirs][1:]:
                features = module(features)
            close(found, features["sentence_embedding"][0, :10])


@pytest.mark.slow
async def test_vectors_are_sentence_transformers(
    client: httpx.AsyncClient, theirs: SentenceTransformer
) -> None:
    close(await pooled(client), theirs.encode(TEXTS))
    close(await pooled(client, prompt_name=""), theirs.encode(TEXTS, prompt=""))
    close(await pooled(client, prompt_name="document"), theirs.encode(TEXTS, prompt=""))
    unit = theirs.encode(TEXTS, normalize_embeddings=True)
    close(await pooled(client, normalize=True), unit)
    unit = theirs.encode(TEXTS, truncate_dim=20, normalize_embeddings=True)
    close(await pooled(client, dimensions=20), unit)
    close(await pooled(client, dimensions=30), theirs.encode(TEXTS, truncate_dim=30))


@pytest.mark.slow
async def test_many_texts_at_once(client: httpx.AsyncClient, theirs: SentenceTransformer) -> None:
    texts = ["the cat " * (1 + n % 3) for n in range(70)]
    body = {"inputs": texts, "outputs": ["pooled"]}
    headers = {"accept": "application/vnd.safetensors"}
    reply = await client.post("/encode", json=body, headers=headers)
    close(load(reply.content)["pooled"], theirs.encode(texts))


@pytest.mark.slow
async def test_a_pooling_that_fits_no_module_is_given_as_it_is(client: httpx.AsyncClient) -> None:
    body = {"inputs": "the cat", "pooling": "max", "normalize": False, "prompt_name": ""}
    reply = await client.post("/encode", json=body | {"dimensions": 12})
    (result,) = reply.json()["results"]
    close(result["pooled"], np.max(result["embeddings"], axis=0))
    refused = await client.post("/encode", json=body | {"dimensions": 13})
    assert refused.status_code == 422
    assert "dimensions 13 is more than the model's 12" in refused.text
    refused = await client.post("/encode", json={"inputs": "the cat", "dimensions": 31})
    assert "dimensions 31 is more than the model's 30" in refused.text


@pytest.mark.slow
async def test_the_shift_of_an_ablation_is_one_of_whole_vectors(
    client: httpx.AsyncClient, module_artifact: Artifact, theirs: SentenceTransformer
) -> None:
    body = {"inputs": "the cat", "prompt_name": "", "ablate": [{"layer": 1, "head": 2}]}
    (result,) = (await client.post("/attention", json=body)).json()["results"]
    ids = result["token_ids"]
    batch = PackedBatch.of(pack([(ids, [0] * len(ids))]))
    mask = torch.ones(1, 2, 3)
    mask[0, 1, 2] = 0
    encoder, vectors = load_modules(module_artifact).encoder, []
    for head_mask in (None, mask):
        with torch.inference_mode():
            states = encoder(batch, head_mask).hidden_states[-1][None]
            features = {"token_embeddings": states, "attention_mask": torch.ones(1, len(ids))}
            for module in list(theirs)[1:]:
                features = module(features)
        vectors.append(features["sentence_embedding"])
    expected = 1 - functional.cosine_similarity(*vectors)
    close(result["pooled_shift"], expected.item())
    assert result["pooled_shift"] > 1e-4


@pytest.mark.slow
async def test_a_service_says_what_it_applies(client: httpx.AsyncClient) -> None:
    info = (await client.get("/info")).json()
    assert info["model_type"] == {"embedding": {"pooling": "mean+weightedmean"}}
    said = {
        "hidden_size": 12,
        "embedding_dimension": 10,
        "truncate_dim": 10,
        "default_prompt_name": "query",
        "prompts": ["document", "query"],
        "similarity_fn_name": "dot",
        "normalize": True,
    }
    assert {name: info[name] for name in said} == said


@pytest.mark.slow
def test_an_evaluation_is_of_the_same_vectors(
    module_artifact: Artifact, engine: OnnxEngine, theirs: SentenceTransformer
) -> None:
    expected = theirs.encode(TEXTS, normalize_embeddings=True)
    encoder = LocalEncoder(module_artifact, Settings(), Encoding(normalize=True), engine)
    close(embed(encoder, TEXTS), expected)
    encoder.close()


async def core(artifact: Artifact) -> Inference:
    async with serving(artifact, FakeEngine(CONFIG)) as client:
        return state_of(client.app).models.default.inference


async def test_a_serving_only_artifact_is_refused_by_the_options_name(
    artifact: Artifact, tmp_path: Path
) -> None:
    (await core(artifact)).require(Decomposition)
    serving = serving_copy(artifact, tmp_path / "serving")
    with pytest.raises(NotExported, match=r"--serving-only, without .* a decomposition") as no:
        (await core(serving)).require(Decomposition)
    assert no.value.status == 501
