"""Families that compute differently from BERT, in every precision that rounds.

The models have one layer, as all layers are alike; test_graphs_families.py tests shared parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    DebertaV2Config,
    DebertaV2Model,
    MPNetConfig,
    MPNetModel,
    Qwen3Config,
    Qwen3Model,
)

from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.tokenizer import read_tokenizer
from model.config.precision import Precision
from model.numerics.batch import pack
from model.numerics.pooling import TextPooling
from model.runtimes.registry import has_products, load_runtime
from tests.model.checkpoints import write_tokenizer
from tests.model.families.parity import SIZES
from tests.model.families.test_deberta_v2 import VERSION_3
from tests.model.families.test_qwen3 import TINY as QWEN3

pytestmark = pytest.mark.slow
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "mpnet": (MPNetConfig, MPNetModel, SIZES),
    "qwen3": (Qwen3Config, Qwen3Model, QWEN3),
    "deberta": (DebertaV2Config, DebertaV2Model, SIZES | VERSION_3),
}
TEXTS = ("the cat", "a b c d e f g the cat . the cat", "")
LEAST_COSINE = {"fp16": 0.99999, "bf16": 0.999, "int8": 0.98}
ALWAYS = {("qwen3", "int8"), ("deberta", "int8")}
"""Pairs in `make test`; the tiny BERT tests every precision, test_graphs_families.py float32."""
CASES = [
    pytest.param(*case, marks=[pytest.mark.nightly] * (case not in ALWAYS))
    for case in itertools.product(MODELS, LEAST_COSINE)
]


@pytest.fixture(scope="module")
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config, model, fields = MODELS[request.param]
    folder = tmp_path_factory.mktemp("coarse") / request.param
    torch.manual_seed(0)
    own = {"num_hidden_layers": 1, "initializer_range": 0.1, "pad_token_id": 0}
    model(config(**fields | own)).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize(("checkpoint", "precision"), CASES, indirect=["checkpoint"])
def test_vectors_are_near_transformers(
    checkpoint: Path, precision: Precision, exported: Callable[..., Artifact]
) -> None:
    artifact = exported(checkpoint, f"coarse-{checkpoint.name}", precision)
    assert artifact.manifest.verification.passed, artifact.manifest.verification.failed
    reference = AutoModel.from_pretrained(
        checkpoint, attn_implementation="eager", dtype=torch.float32
    ).eval()
    tokenizer = read_tokenizer(artifact.path(TOKENIZER))
    texts = [tokenizer.encode(text) for text in TEXTS]
    poolings = [TextPooling(text, 1, "mean") for text in range(len(texts))]
    batch = pack([(text.ids, text.type_ids) for text in texts])
    _, vectors = load_runtime(artifact).encode(batch, [], poolings)
    for text, served in zip(texts, vectors, strict=True):
        ids = torch.tensor([text.ids])
        with torch.inference_mode():
            states = reference(input_ids=ids, attention_mask=torch.ones_like(ids))
        expected = states.last_hidden_state[0].double().mean(dim=0).numpy()
        vector = np.asarray(served, np.float64)
        cosine = vector @ expected / np.linalg.norm(vector) / np.linalg.norm(expected)
        assert LEAST_COSINE[precision] <= cosine
        if has_products(precision) or precision == "int8":
            assert cosine < 1 - 1e-9  # not float32 after all
