"""Layers of a BERT against two independent computations of the shares."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertModel

from model.checkpoint import load_checkpoint
from model.config.encoder import NormName
from model.decomposition.layers import decomposed, normalized, projected, shifted, slope
from model.encoder.encoder import Encoder
from model.encoder.layers import ACTIVATIONS
from model.norms import normalize

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


class Frozen:
    """Softmax, layer norm and GELU as linear maps, recorded for the state, call by call."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._replay: Iterator[Any] | None = None

    def replay(self) -> None:
        """Replay the recorded maps, from the first call on."""
        self._replay = iter(self._values)

    def _once(self, value: Callable[[], Tensor]) -> Tensor:
        if self._replay is not None:
            return next(self._replay)
        self._values.append(value())
        return self._values[-1]

    def softmax(self, scores: Tensor, *_: Any, **__: Any) -> Tensor:
        return self._once(lambda: torch.softmax(scores, dim=-1))

    def layer_norm(self, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        scale = self._once(
            lambda: 1 / torch.sqrt(x.var(dim=-1, unbiased=False, keepdim=True) + norm.eps)
        )
        return (x - x.mean(dim=-1, keepdim=True)) * scale * norm.weight + norm.bias

    def gelu(self, x: Tensor) -> Tensor:
        return x * self._once(lambda: nn.functional.gelu(x) / x)

    @contextmanager
    def inside(self, model: BertModel) -> Iterator[None]:
        """Make transformers' own modules compute with the recorded maps."""
        kind = type(model.encoder.layer[0].intermediate.intermediate_act_fn)

        def norm(module: nn.LayerNorm, x: Tensor) -> Tensor:
            return self.layer_norm(module, x)

        with (
            mock.patch.object(kind, "forward", lambda _, x: self.gelu(x)),
            mock.patch.object(nn.functional, "softmax", self.softmax),
            mock.patch.object(nn.LayerNorm, "forward", norm),
        ):
            yield


def test_without_biases_a_share_is_the_frozen_networks_derivative(tmp_path: Path) -> None:
    """The share of token i is J x_i, J the Jacobian of transformers' own frozen modules."""
    model = bert(biases=False)
    _, embedded, found = shares(model, tmp_path)
    frozen = Frozen()

    def last(states: Tensor) -> Tensor:
        return model.encoder(states[None])[0][0]

    with torch.no_grad():
        true = last(embedded)
        with frozen.inside(model):
            torch.testing.assert_close(last(embedded), true, atol=1e-5, rtol=0)
    embedded = embedded.clone()  # outside of inference mode
    with frozen.inside(model):
        frozen.replay()
        jacobian = torch.autograd.functional.jacobian(last, embedded)  # [S, H, S, H]
    expected = torch.einsum("thij,ij->tih", jacobian, embedded)
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
