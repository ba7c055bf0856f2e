from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertModel

from model.checkpoint import load_checkpoint
from model.config import EncoderConfig
from model.encoder import ACTIVATIONS, Encoder

Inputs = dict[str, Tensor]
HIDDEN = {"atol": 1e-5, "rtol": 1e-5}
ATTENTION = {"atol": 3e-6, "rtol": 0.0}


def reference_of(folder: Path) -> BertModel:
    return BertModel.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, add_pooling_layer=False
    ).eval()


def padded_batch(config: EncoderConfig, lengths: list[int]) -> Inputs:
    """Random ids and segments, also in the padding, which nothing may depend on."""
    generator = torch.Generator().manual_seed(len(lengths))
    shape = (len(lengths), max(lengths))
    return {
        "input_ids": torch.randint(config.vocab_size, shape, generator=generator),
        "attention_mask": (torch.arange(shape[1]) < torch.tensor(lengths)[:, None]).long(),
        "token_type_ids": torch.randint(config.type_vocab_size, shape, generator=generator),
    }


def assert_equals_transformers(folder: Path, lengths: list[int]) -> None:
    """Every hidden state and attention map of every text's real tokens."""
    encoder = load_checkpoint(folder)
    batch = padded_batch(encoder.config, lengths)
    with torch.inference_mode():
        ours = encoder(**batch, output_attentions=True)
        theirs = reference_of(folder)(**batch, output_hidden_states=True, output_attentions=True)
    layers = encoder.config.num_hidden_layers
    assert len(ours.hidden_states) == len(theirs.hidden_states) == layers + 1
    assert len(ours.attentions) == len(theirs.attentions) == layers
    for text, n in enumerate(lengths):
        for found, expected in zip(ours.hidden_states, theirs.hidden_states, strict=True):
            torch.testing.assert_close(found[text, :n], expected[text, :n], **HIDDEN)
        for found, expected in zip(ours.attentions, theirs.attentions, strict=True):
            torch.testing.assert_close(found[text, :, :n], expected[text, :, :n], **ATTENTION)


@pytest.mark.parametrize("checkpoint", ["minilm_checkpoint", "small_checkpoint"])
@pytest.mark.parametrize("lengths", [[1], [33, 1, 12, 64], [512]], ids=str)
def test_a_real_checkpoint_equals_transformers(
    checkpoint: str, lengths: list[int], request: pytest.FixtureRequest
) -> None:
    assert_equals_transformers(request.getfixturevalue(checkpoint), lengths)


@pytest.mark.parametrize("hidden_act", ACTIVATIONS)
def test_every_activation_equals_transformers(
    make_checkpoint: Callable[..., Path], hidden_act: str
) -> None:
    assert_equals_transformers(make_checkpoint(hidden_act=hidden_act), [9, 4, 1])


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden_size": 7, "num_attention_heads": 1, "intermediate_size": 3},
        {"hidden_size": 15, "num_attention_heads": 5, "num_hidden_layers": 1},
        {"hidden_size": 6, "num_attention_heads": 6, "num_hidden_layers": 4},
        {"hidden_size": 1, "num_attention_heads": 1, "intermediate_size": 1},
        {"type_vocab_size": 1},
        {"type_vocab_size": 3},
        {"layer_norm_eps": 0.3},
        {"max_position_embeddings": 9},
        {"vocab_size": 3, "pad_token_id": 2},
    ],
    ids=str,
)
def test_odd_sizes_equal_transformers(
    make_checkpoint: Callable[..., Path], sizes: dict[str, Any]
) -> None:
    assert_equals_transformers(make_checkpoint(**sizes), [9, 4, 1])


def test_attentions_come_only_when_asked_for(tiny_checkpoint: Path) -> None:
    encoder = load_checkpoint(tiny_checkpoint)
    assert encoder(**padded_batch(encoder.config, [3])).attentions == ()


@pytest.mark.parametrize("score", ["scaled_dot_product", "additive", "bilinear", "cosine"])
@pytest.mark.parametrize("normalizer", ["softmax", "sparsemax"])
def test_padding_changes_nothing(
    make_checkpoint: Callable[..., Path], score: str, normalizer: str
) -> None:
    encoder = load_checkpoint(
        make_checkpoint(attention_score=score, attention_normalizer=normalizer)
    )
    lengths = [9, 4, 1]
    batch = padded_batch(encoder.config, lengths)
    with torch.inference_mode():
        together = encoder(**batch, output_attentions=True)
        for text, n in enumerate(lengths):
            alone = encoder(
                **{name: tensor[[text], :n] for name, tensor in batch.items()},
                output_attentions=True,
            )
            for found, expected in zip(together.hidden_states, alone.hidden_states, strict=True):
                torch.testing.assert_close(found[text, :n], expected[0], **HIDDEN)
            for found, expected in zip(together.attentions, alone.attentions, strict=True):
                torch.testing.assert_close(found[text, :, :n, :n], expected[0], **ATTENTION)
                assert found[text, :, :, n:].count_nonzero() == 0


def scale_heads(reference: BertModel, head_mask: Tensor) -> None:
    """Multiply each head's slice of what enters the output projection, `[L, N]`."""
    for layer, factors in zip(reference.encoder.layer, head_mask, strict=True):
        scale = factors.repeat_interleave(layer.attention.self.attention_head_size)
        layer.attention.output.dense.register_forward_pre_hook(
            lambda _, inputs, scale=scale: (inputs[0] * scale,)
        )


@pytest.mark.parametrize(
    "head_mask",
    [
        [[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]],
        [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]],
        [[1.0, 0.5, 2.0], [0.0, 1.0, -1.0]],
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
    ],
    ids=str,
)
def test_a_head_mask_equals_a_hook_before_the_output_projection(
    tiny_checkpoint: Path, head_mask: list[list[float]]
) -> None:
    encoder, reference = load_checkpoint(tiny_checkpoint), reference_of(tiny_checkpoint)
    batch = padded_batch(encoder.config, [9, 4])
    factors = torch.tensor(head_mask)
    scale_heads(reference, factors)
    with torch.inference_mode():
        ours = encoder(**batch, head_mask=factors.expand(2, -1, -1), output_attentions=True)
        theirs = reference(**batch, output_hidden_states=True, output_attentions=True)
    for found, expected in zip(ours.hidden_states, theirs.hidden_states, strict=True):
        torch.testing.assert_close(found[0], expected[0], **HIDDEN)
        torch.testing.assert_close(found[1, :4], expected[1, :4], **HIDDEN)
    for found, expected in zip(ours.attentions, theirs.attentions, strict=True):
        torch.testing.assert_close(found[0], expected[0], **ATTENTION)


def test_texts_of_one_batch_may_have_different_head_masks(tiny_checkpoint: Path) -> None:
    encoder = load_checkpoint(tiny_checkpoint)
    batch = padded_batch(encoder.config, [6, 6, 6])
    head_mask = torch.ones(3, 2, 3)
    head_mask[1, 0, 2] = 0
    head_mask[2, 1, 0] = 0
    with torch.inference_mode():
        plain = encoder(**batch).hidden_states[-1]
        together = encoder(**batch, head_mask=head_mask).hidden_states[-1]
        for text in range(3):
            one = {name: tensor[[text]] for name, tensor in batch.items()}
            alone = encoder(**one, head_mask=head_mask[[text]]).hidden_states[-1]
            torch.testing.assert_close(together[[text]], alone, **HIDDEN)
    torch.testing.assert_close(together[0], plain[0], **HIDDEN)
    assert (together[1] - plain[1]).abs().max() > 0.01
    assert (together[2] - plain[2]).abs().max() > 0.01


def test_an_encoder_is_trainable() -> None:
    """Nothing on the way from the loss to any parameter cuts the gradient."""
    torch.manual_seed(0)
    fields = {"model_type": "bert", "vocab_size": 9, "hidden_size": 6, "intermediate_size": 5}
    fields |= {"num_hidden_layers": 2, "num_attention_heads": 2, "attention_score": "additive"}
    encoder = Encoder(EncoderConfig.from_dict(fields))
    batch = padded_batch(encoder.config, [5, 3])
    encoder(**batch).hidden_states[-1].square().sum().backward()
    without = [
        name
        for name, parameter in encoder.named_parameters()
        if parameter.grad is None or not parameter.grad.isfinite().all()
    ]
    assert without == []
