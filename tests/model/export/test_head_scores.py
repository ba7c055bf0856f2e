"""Queries, keys and scores of heads, by the exported graph and PyTorch, against transformers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    Gemma3TextConfig,
    Gemma3TextModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedModel,
    Qwen3Config,
    Qwen3Model,
)

from model.artifact.signature import head_parameter_name, head_scores_signature
from model.checkpoint import load_checkpoint
from model.encoder.encoder import Encoder
from model.export.decomposition import export_head_scores
from model.export.graphs import head_parameters, one_head_shapes
from model.export.verify import signature_mismatches
from model.runtimes.contract import Floats, HeadScores
from model.runtimes.pytorch import PyTorchRuntime
from tests.model.families.parity import SIZES, VOCABULARY, saved
from tests.model.families.test_encoder_parity import GEMMA3, MODERNBERT, QWEN3

IDS = torch.randint(3, VOCABULARY, (1, 12), generator=torch.Generator().manual_seed(3))
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": lambda: BertModel(BertConfig(**SIZES)),
    "modernbert": lambda: ModernBertModel(ModernBertConfig(**MODERNBERT)),
    "qwen3": lambda: Qwen3Model(Qwen3Config(**QWEN3)),
    "gemma3": lambda: Gemma3TextModel(Gemma3TextConfig(**GEMMA3)),
    "mpnet": lambda: MPNetModel(MPNetConfig(**SIZES)),
    "deberta_v2": lambda: DebertaV2Model(
        DebertaV2Config(
            **SIZES,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_buckets=8,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
        )
    ),
}
RECORDED = ("bert", "modernbert", "qwen3", "gemma3")
"""Families whose attention is a function of queries and keys as they enter the score."""


def reference(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """Return the output for `IDS`, and each layer's scaled queries and keys per head."""
    own = importlib.import_module(type(model).__module__)
    seen = []
    if hasattr(own, "eager_attention_forward"):
        eager = own.eager_attention_forward

        def recording(module: Any, query: Any, key: Any, *others: Any, **options: Any) -> Any:
            scaling = options.get("scaling") or query.shape[-1] ** -0.5
            seen.append((query[0] * scaling, key[0]))
            return eager(module, query, key, *others, **options)

        monkeypatch.setattr(own, "eager_attention_forward", recording)
    with torch.no_grad():
        output = model(input_ids=IDS, output_hidden_states=True, output_attentions=True)
    return output, seen


def by_graph(encoder: Encoder) -> Callable[[Floats, int, list[int]], HeadScores]:
    """Run the exported graph on ONNX Runtime."""
    graph = export_head_scores(encoder.config)
    signature = head_scores_signature(encoder.config, one_head_shapes(encoder.config))
    assert signature_mismatches(graph.graph, signature) == []
    held = [len(one.raw_data) for one in graph.graph.initializer]
    assert max(held, default=0) <= 1024, "a graph of every layer holds no weights"
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    stored = head_parameters(encoder)

    def of(states: Floats, layer: int, heads: list[int]) -> HeadScores:
        feed = {
            spec.name: stored[head_parameter_name(spec.name, layer)][heads].numpy()
            for spec in signature.inputs[1:]
        }
        return HeadScores(*session.run(None, {"states": states, **feed}))

    return of


@pytest.mark.parametrize("runtime", ["graph", "pytorch"])
@pytest.mark.parametrize("name", MODELS)
def test_they_are_transformers_own(
    name: str, runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The softmax of the scores over the allowed keys equals transformers' weights."""
    model = MODELS[name]()
    encoder = load_checkpoint(saved(model, tmp_path))
    output, seen = reference(model, monkeypatch)
    assert bool(seen) == (name in RECORDED)
    of = by_graph(encoder) if runtime == "graph" else PyTorchRuntime(encoder).head_scores
    p = encoder.config.head_size
    for layer, weights in enumerate(output.attentions):
        count = weights.shape[1]
        states = np.ascontiguousarray(output.hidden_states[layer][0].numpy())
        for heads in (list(range(count)), [count - 1, 0], [1]):
            found = of(states, layer, heads)
            wanted = weights[0, heads].numpy()
            masked = np.where(wanted > 0, found.scores, -np.inf)
            own = torch.softmax(torch.from_numpy(masked), -1).numpy()
            np.testing.assert_allclose(own, wanted, atol=2e-6, rtol=1e-4)
            if not seen:
                continue
            queries, keys = (each.numpy() for each in seen[layer])
            shared = [head * len(keys) // count for head in heads]
            scale = {"atol": 1e-5 * np.abs(queries).max() * p**0.5, "rtol": 1e-4}
            np.testing.assert_allclose(found.queries, queries[heads] * p**0.5, **scale)
            atol = 1e-5 * np.abs(keys).max()
            np.testing.assert_allclose(found.keys, keys[shared], atol=atol, rtol=1e-4)
            products = found.queries @ found.keys.transpose(0, 2, 1) / p**0.5
            atol = 1e-5 * np.abs(products).max()
            np.testing.assert_allclose(found.scores, products, atol=atol, rtol=1e-4)


def test_positions_add_to_the_products(tmp_path: Path) -> None:
    """With relative positions the scores are not only products of features."""
    encoder = load_checkpoint(saved(MODELS["mpnet"](), tmp_path))
    states = np.random.default_rng(0).standard_normal((6, 24), np.float32)
    found = PyTorchRuntime(encoder).head_scores(states, 0, [0])
    products = found.queries @ found.keys.transpose(0, 2, 1) / encoder.config.head_size**0.5
    assert np.abs(found.scores - products).max() > 0.01
