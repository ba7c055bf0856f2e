"""Encoders as a whole, and the order of a layer's parts against their formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import BertModel

from model.attention.self_attention import attention_rule
from model.attention.weights import Heads, attention_weights, some_heads
from model.checkpoint import load_checkpoint
from model.config.encoder import EncoderConfig
from model.encoder.encoder import Encoder
from model.encoder.layers import Layer
from model.families.registry import parse_config
from model.numerics.batch import pack
from model.packing import PackedBatch
from tests.model.attention.test_self_attention import config_of
from tests.model.families.parity import Texts, compare

HIDDEN = {"atol": 1e-5, "rtol": 1e-5}


def reference_of(folder: Path) -> BertModel:
    return BertModel.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, add_pooling_layer=False
    ).eval()


def random_texts(config: EncoderConfig, lengths: list[int]) -> Texts:
    generator = torch.Generator().manual_seed(len(lengths))
    sizes = (config.vocab_size, config.type_vocab_size)
    return [
        tuple(torch.randint(size, (n,), generator=generator) for size in sizes) for n in lengths
    ]


def packed(texts: Texts) -> PackedBatch:
    return PackedBatch.of(pack(texts))


@pytest.mark.parametrize("checkpoint", ["minilm_checkpoint", "small_checkpoint"])
@pytest.mark.parametrize("lengths", [[1], [33, 1, 12, 64], [512]], ids=str)
def test_a_real_checkpoint_equals_transformers(
    checkpoint: str, lengths: list[int], request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(checkpoint)
    encoder = load_checkpoint(folder)
    compare(reference_of(folder), encoder, random_texts(encoder.config, lengths))


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=9))
@example(lengths=[1])
@example(lengths=[1, 1, 1])
@example(lengths=[40])
@example(lengths=[1, 40, 1, 39, 2])
def test_any_lengths_equal_transformers(tiny_checkpoint: Path, lengths: list[int]) -> None:
    encoder = load_checkpoint(tiny_checkpoint)
    compare(reference_of(tiny_checkpoint), encoder, random_texts(encoder.config, lengths))


def test_attentions_come_only_when_asked_for(tiny_checkpoint: Path) -> None:
    encoder = load_checkpoint(tiny_checkpoint)
    assert encoder(packed(random_texts(encoder.config, [3]))).attentions == ()


def scale_heads(reference: BertModel, head_mask: Tensor) -> None:
    """Multiply each head's slice of the output projection's input by its factor, `[L, N]`."""
    for layer, factors in zip(reference.encoder.layer, head_mask, strict=True):
        scale = factors.repeat_interleave(layer.attention.self.attention_head_size)
        layer.attention.output.dense.register_forward_pre_hook(
            lambda _, inputs, scale=scale: (inputs[0] * scale,)
        )


def test_head_masks_of_texts_equal_hooks_before_the_output_projection(
    tiny_checkpoint: Path,
) -> None:
    """Texts of one batch may have different masks."""
    encoder = load_checkpoint(tiny_checkpoint)
    texts = random_texts(encoder.config, [9, 4, 6, 1, 5])
    head_mask = torch.tensor(
        [
            [[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]],
            [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]],
            [[1.0, 0.5, 2.0], [0.0, 1.0, -1.0]],
            [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
            [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]],
        ]
    )
    with torch.inference_mode():
        states = encoder(packed(texts), head_mask=head_mask).hidden_states
        found = zip(*(state.split([len(ids) for ids, _ in texts]) for state in states), strict=True)
        for own, (ids, segments), factors in zip(found, texts, head_mask, strict=True):
            reference = reference_of(tiny_checkpoint)
            scale_heads(reference, factors)
            theirs = reference(ids[None], None, segments[None], output_hidden_states=True)
            for ours, expected in zip(own, theirs.hidden_states, strict=True):
                torch.testing.assert_close(ours, expected[0], **HIDDEN)


def test_an_encoder_is_trainable() -> None:
    """The gradient reaches every parameter from the loss."""
    torch.manual_seed(0)
    fields = {"model_type": "bert", "vocab_size": 9, "hidden_size": 6, "intermediate_size": 5}
    fields |= {"num_hidden_layers": 2, "num_attention_heads": 2, "attention_score": "additive"}
    encoder = Encoder(parse_config(fields))
    batch = packed(random_texts(encoder.config, [5, 3]))
    encoder(batch).hidden_states[-1].square().sum().backward()
    without = [
        name
        for name, parameter in encoder.named_parameters()
        if parameter.grad is None or not parameter.grad.isfinite().all()
    ]
    assert without == []


BATCH = PackedBatch.of(pack([([1, 2, 3], [0, 0, 0]), ([4], [0])]))


def layer_of(order: str, number: int = 1, **layout: Any) -> Layer:
    config = config_of(6, 3, intermediate_size=5, layer={"order": order, **layout})
    layer = Layer(config, number, attention_rule(config))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return layer


def parts(layer: Any, x: Tensor) -> Tensor:
    return layer.attention.attend(x, BATCH, None, {})


FORMULAS = {
    "post_norm": lambda layer, x: layer.attention_norm(x + parts(layer, x)),
    "pre_norm": lambda layer, x: x + parts(layer, layer.attention_norm(x)),
    "sandwich_norm": lambda layer, x: (
        x + layer.attended_norm(parts(layer, layer.attention_norm(x)))
    ),
}
SECOND = {
    "post_norm": lambda layer, x: layer.output_norm(x + layer.feed_forward(x)),
    "pre_norm": lambda layer, x: x + layer.feed_forward(layer.feed_forward_norm(x)),
    "sandwich_norm": lambda layer, x: (
        x + layer.output_norm(layer.feed_forward(layer.feed_forward_norm(x)))
    ),
}


@pytest.mark.parametrize("order", FORMULAS)
@torch.no_grad()
def test_a_layer_is_its_formula(order: str) -> None:
    layer, x = layer_of(order), torch.randn(4, 6)
    expected = SECOND[order](layer, FORMULAS[order](layer, x))
    torch.testing.assert_close(layer(x, BATCH, None, {}), expected)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("order", "layout"),
    [
        ("post_norm", {}),
        ("pre_norm", {}),
        ("pre_norm", {"first_attention_norm": False}),
        ("pre_norm", {"norm": "rms_norm"}),
        ("sandwich_norm", {"norm_bias": False}),
    ],
    ids=str,
)
@torch.no_grad()
def test_maps_follow_from_a_layers_input_and_its_heads_parameters(
    order: str, layout: dict[str, Any], number: int
) -> None:
    layer, x = layer_of(order, number, **layout), torch.randn(4, 6)
    parameters = some_heads(layer.head_parameters({}), [2], 3)
    assert {len(tensor) for tensor in parameters.values()} == {1}
    heads = Heads.from_parameters(parameters, layer.attention.rule)
    found = attention_weights(heads, x[None, :3], x[None, :3])
    torch.testing.assert_close(found[0, 0], layer.maps(x, BATCH, {})[0, 2])
