"""Graph of value products on ONNX Runtime, against PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import ModernBertConfig, ModernBertModel, Qwen3Config, Qwen3Model

from model.artifact.signature import head_parameter_name
from model.attention.values import value_products
from model.attention.weights import some_heads
from model.checkpoint import load_checkpoint
from model.export.graphs import head_parameters
from model.export.values import export_value_norms, values_signature
from model.export.verify import signature_mismatches
from tests.model.families.parity import saved
from tests.model.families.test_modernbert import TINY as MODERNBERT
from tests.model.families.test_qwen3 import TINY as QWEN3


@pytest.mark.parametrize(
    "made",
    [
        lambda: ModernBertModel(ModernBertConfig(**MODERNBERT | {"num_hidden_layers": 2})),
        lambda: Qwen3Model(Qwen3Config(**QWEN3 | {"num_hidden_layers": 2})),
    ],
    ids=["modernbert", "qwen3"],
)
def test_any_heads_and_any_number_of_tokens(made: Any, tmp_path: Path) -> None:
    encoder = load_checkpoint(saved(made(), tmp_path))
    graph, signature = export_value_norms(encoder.config), values_signature(encoder.config)
    assert signature_mismatches(graph.graph, signature) == []
    assert (
        not graph.graph.initializer
        or max(len(one.raw_data) for one in graph.graph.initializer) <= 64
    ), "a graph of every layer holds no weights"
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    heads, stored = encoder.config.num_attention_heads, head_parameters(encoder)
    for layer, parameters in enumerate(encoder.value_parameters()):
        for chosen, tokens in ((range(heads), 11), ([heads - 1, 0], 1), ([1], 4)):
            states = torch.randn(tokens, encoder.config.hidden_size)
            feed = {
                spec.name: stored[head_parameter_name(spec.name, layer)][list(chosen)].numpy()
                for spec in signature.inputs[1:]
            }
            (found,) = session.run(["value_products"], {"key_states": states.numpy(), **feed})
            with torch.no_grad():
                some = some_heads(parameters, chosen, heads)
                wanted = value_products(some, encoder.rule, states).numpy()
            atol = 1e-6 * np.abs(wanted).max()
            np.testing.assert_allclose(found, wanted, atol=atol, rtol=1e-5, strict=True)
