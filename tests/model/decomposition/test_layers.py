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
from transformers import BertConfig, BertModel

from model.checkpoint import load_checkpoint
from model.decomposition.layers import decomposed
from model.encoder.encoder import Encoder

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
