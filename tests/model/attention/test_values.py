"""Vectors that heads add, against the value and output projections of transformers' models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    ModernBertConfig,
    ModernBertModel,
    Qwen3Config,
    Qwen3Model,
)

from model.attention.weights import some_heads, value_products
from model.checkpoint import load_checkpoint
from tests.model.families.parity import SIZES, saved
from tests.model.families.test_encoder_parity import GEMMA3, MODERNBERT, QWEN3

BERT = ("attention.self.value", "attention.output.dense")
MODELS: dict[str, tuple[Any, Any, dict[str, Any], tuple[str, str]]] = {
    "bert": (BertConfig, BertModel, SIZES, BERT),
    "albert": (
        AlbertConfig,
        AlbertModel,
        SIZES | {"embedding_size": 16, "num_hidden_groups": 2},
        ("attention.value", "attention.dense"),
    ),
    "modernbert": (ModernBertConfig, ModernBertModel, MODERNBERT, ("attn.Wqkv", "attn.Wo")),
    "with biases": (
        *(ModernBertConfig, ModernBertModel),
        MODERNBERT | {"norm_bias": True, "attention_bias": True},
        ("attn.Wqkv", "attn.Wo"),
    ),
    "qwen3": (Qwen3Config, Qwen3Model, QWEN3, ("self_attn.v_proj", "self_attn.o_proj")),
    "gemma3": (Gemma3TextConfig, Gemma3TextModel, GEMMA3, ("self_attn.v_proj", "self_attn.o_proj")),
}
"""Models with norms after or before, also in the first layer; shared layers, grouped values,
biases."""


class Layer(NamedTuple):
    """Layer of transformers for one text."""

    entering: Tensor
    maps: Tensor
    """Attention weights `[N, S, S]`."""
    added: Tensor
    """Added vectors f_h(x_k), float64 `[N, S, H]`."""


def layers_of(model: Any, ids: Tensor, names: tuple[str, str]) -> Iterator[Layer]:
    """Yield each layer; assert that its parts sum up to its attention output."""
    values: list[Tensor] = []
    outputs: list[tuple[Any, Tensor]] = []
    for name, module in model.named_modules():
        if name.endswith(names[0]):
            module.register_forward_hook(lambda _, __, found: values.append(found[0]))
        elif name.endswith(names[1]):
            module.register_forward_hook(lambda one, _, found: outputs.append((one, found[0])))
    with torch.no_grad():
        found = model(input_ids=ids[None], output_hidden_states=True, output_attentions=True)
    for layer, (dense, attended) in enumerate(outputs):
        maps = found.attentions[layer][0]
        weight = dense.weight.double()
        size = weight.shape[1] // len(maps)
        of_heads = values[layer][:, -maps_features(names, values[layer], weight) :].double()
        split = of_heads.reshape(len(ids), -1, size).repeat_interleave(
            weight.shape[1] // of_heads.shape[1], dim=1
        )
        added = torch.stack(
            [
                split[:, head] @ weight[:, head * size : (head + 1) * size].T
                for head in range(len(maps))
            ]
        )
        bias = 0 if dense.bias is None else dense.bias.double()
        whole = (maps.double() @ added).sum(dim=0) + bias
        torch.testing.assert_close(whole, attended.double(), atol=1e-4, rtol=1e-4)
        yield Layer(found.hidden_states[layer][0], maps, added)


def maps_features(names: tuple[str, str], values: Tensor, weight: Tensor) -> int:
    """Return the features of values, which may follow the queries' and keys' features."""
    return int(weight.shape[1] if names[0].endswith("Wqkv") else values.shape[1])


@pytest.mark.parametrize("name", MODELS)
def test_norms_equal_those_of_transformers_own_projections(name: str, tmp_path: Path) -> None:
    config, model, fields, names = MODELS[name]
    reference = model(config(**fields))
    encoder = load_checkpoint(saved(reference, tmp_path))
    heads = encoder.config.num_attention_heads
    ids = torch.randint(3, 97, (19,), generator=torch.Generator().manual_seed(2))
    every = layers_of(reference, ids, names)
    for parameters, layer in zip(encoder.value_parameters(), every, strict=True):
        for chosen in (range(heads), [heads - 1, 0]):
            with torch.no_grad():
                some = some_heads(parameters, chosen, heads)
                products = value_products(some, encoder.rule, layer.entering)
            added = layer.added[list(chosen)]
            wanted = torch.einsum("gkd,hkd->kgh", added, added)
            atol = 1e-6 * wanted.abs().max().item()
            torch.testing.assert_close(products.double(), wanted, atol=atol, rtol=1e-5)
            norms = layer.maps[list(chosen)] * products.diagonal(dim1=1, dim2=2).T.sqrt()[:, None]
            vectors = layer.maps[list(chosen)].double()[..., None] * added[:, None]
            torch.testing.assert_close(norms.double(), vectors.norm(dim=-1), atol=0, rtol=1e-4)
