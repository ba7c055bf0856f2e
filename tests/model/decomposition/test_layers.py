"""Layers of a BERT against two independent computations of the shares."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import BertConfig, BertModel

from model.checkpoint import load_checkpoint
from model.config.encoder import NormName
from model.decomposition.layers import decomposed, normalized, projected, shifted, slope
from model.encoder.encoder import Encoder
from model.encoder.layers import ACTIVATIONS
from model.norms import normalize
from tests.tower_oracle import frozen, jacobian

SIZES = {
    "vocab_size": 30,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
}
IDS = torch.tensor([[1, 17, 5, 22, 2]])
DECOMPX = Path(__file__).with_name("decompx.json")


def bert(layers: int = 2, *, biases: bool = True) -> BertModel:
    """Return a BERT whose weights only depend on its parameters' names."""
    config = BertConfig(**SIZES, attn_implementation="eager")
    model = BertModel(config, add_pooling_layer=False).eval()
    rng = np.random.default_rng(16)
    with torch.no_grad():
        for name, each in sorted(model.named_parameters()):
            values = 0.4 * rng.standard_normal(tuple(each.shape)).astype(np.float32)
            each.copy_(torch.from_numpy(values + (1 if name.endswith("LayerNorm.weight") else 0)))
            if name.endswith("bias") and not biases:
                each.zero_()
    model.encoder.layer = model.encoder.layer[:layers]
    model.config.num_hidden_layers = layers
    return model


def shares(model: BertModel, folder: Path) -> tuple[Encoder, Tensor, Tensor]:
    """Return our encoder, hidden state 0 `[S, H]`, and shares `[S, S, H]` of the model."""
    model.save_pretrained(folder)
    encoder = load_checkpoint(folder)
    with torch.inference_mode():
        embedded = model.embeddings(IDS)[0]
        return encoder, embedded, decomposed(encoder, embedded)[:, 1:]


@pytest.mark.parametrize("layers", [1, 2])
def test_biases_are_shared_out_as_decompx_does(layers: int, tmp_path: Path) -> None:
    expected = torch.tensor(json.loads(DECOMPX.read_text())["shares"][layers - 1])
    _, _, found = shares(bert(layers), tmp_path)
    assert expected.abs().mean() > 0.1
    torch.testing.assert_close(found, expected, atol=5e-6, rtol=1e-5)


def test_without_biases_a_share_is_the_frozen_networks_derivative(tmp_path: Path) -> None:
    """The share of token i is J x_i, J the Jacobian of transformers' own frozen modules."""
    model = bert(biases=False)
    _, embedded, found = shares(model, tmp_path)
    states = embedded.clone()[None]  # outside of inference mode
    with frozen():
        rows = jacobian(lambda entering: model.encoder(entering)[0][0].flatten(), states)
    gradients = rows.reshape(*embedded.shape, *embedded.shape)  # [S, H, S, H]
    expected = torch.einsum("thij,ij->tih", gradients, states[0])
    assert expected.abs().mean() > 0.05
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


D = 6


def parts_of(tokens: int = 4, shares: int = 5) -> Tensor:
    """Return random shares, preceded by their sum, `[C, P, d]`."""
    found = torch.randn(tokens, shares, D, generator=torch.Generator().manual_seed(1))
    return torch.cat((found.sum(dim=1, keepdim=True), found), dim=1)


def assert_complete(parts: Tensor, state: Tensor) -> None:
    torch.testing.assert_close(parts[:, 0], state, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(parts[:, 1:].sum(dim=1), state, atol=1e-5, rtol=1e-5)


def test_a_share_takes_as_much_of_a_bias_as_it_has_of_its_direction() -> None:
    shares = torch.tensor([[1.0, 5.0], [-3.0, 1.0], [0.0, 7.0]])
    bias = torch.tensor([8.0, 0.0])
    found = shifted(torch.cat((shares.sum(dim=0, keepdim=True), shares))[None], bias)[0]
    taken = torch.tensor([[8.0, 0.0], [2.0, 0.0], [6.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(found[1:], shares + taken[1:])
    torch.testing.assert_close(found[0], shares.sum(dim=0) + bias)


@pytest.mark.parametrize("shares", [1, 4])
def test_a_bias_that_no_share_points_to_is_shared_evenly(shares: int) -> None:
    bias = torch.arange(1.0, D + 1)
    found = shifted(torch.zeros(2, shares + 1, D), bias)
    torch.testing.assert_close(found[:, 1:], (bias / shares).expand(2, shares, D))
    torch.testing.assert_close(found[:, 0], bias.expand(2, D))


def test_a_bias_of_zeros_and_none_change_nothing() -> None:
    parts = parts_of()
    assert torch.equal(shifted(parts, torch.zeros(D)), parts)
    assert shifted(parts, None) is parts


def test_a_projection_is_of_each_part() -> None:
    parts, weight, bias = parts_of(), torch.randn(3, D), torch.randn(3)
    assert_complete(projected(parts, weight, bias), functional.linear(parts[:, 0], weight, bias))
    torch.testing.assert_close(projected(parts, weight)[:, 2], parts[:, 2] @ weight.T)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("biased", [False, True])
def test_a_norm_sums_to_the_states(kind: NormName, biased: bool) -> None:
    parts, weight = parts_of(), torch.randn(D)
    bias = torch.randn(D) if biased else None
    expected = normalize(kind, parts[:, 0], weight, bias, 0.1)
    if kind == "rms_norm" and bias is not None:
        expected = expected + bias
    assert_complete(normalized(parts, kind, weight, bias, 0.1), expected)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_its_slope_times_the_state(name: str) -> None:
    x = torch.tensor([0.0, 1e-9, -1e-20, 1e-5, -0.3, 7.0, -50.0])
    function = ACTIVATIONS[name]  # type: ignore[index]
    found = slope(x, function)
    assert found.isfinite().all()
    torch.testing.assert_close(found * x, function(x))
