from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.model.decoder.conftest import Pair
from tests.model.families.decoder_parity import decode, packed, targets

END = 2


def texts(*lengths: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(4)
    ids = [[torch.randint(3, 50, (n,), generator=generator) for n in pair] for pair in lengths]
    return [(source, labels) for source, labels in ids]


def reference(model: Any, source: Tensor, labels: Tensor) -> Any:
    with torch.no_grad():
        return model(
            input_ids=source[None],
            labels=labels[None],
            output_hidden_states=True,
            output_attentions=True,
        )


def close(found: Tensor, expected: Tensor) -> None:
    atol = 1e-5 * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


def test_an_empty_source_and_a_target_of_one_token(pair: Pair) -> None:
    """An empty text consists of its end token."""
    model, encoder, decoder, _ = pair
    end = torch.tensor([END])
    both = [(end, end), *texts((7, 5))]
    with torch.no_grad():
        found = decode(encoder, decoder, both)
    expected = reference(model, end, end)
    close(found.hidden_states[-1][:1], expected.decoder_hidden_states[-1][0])
    for maps in (found.attentions, found.cross_attentions):
        assert all((each[0, :, 0, :1] == 1).all() for each in maps)
    after = reference(model, *both[1])
    close(found.hidden_states[-1][1:], after.decoder_hidden_states[-1][0])


@pytest.mark.parametrize("lengths", [((4, 0),), ((4, 0), (3, 0)), ((4, 3), (5, 0), (2, 6))])
def test_an_empty_target_has_no_rows(pair: Pair, lengths: tuple[tuple[int, int], ...]) -> None:
    model, encoder, decoder, _ = pair
    both = texts(*lengths)
    with torch.no_grad():
        found = decode(encoder, decoder, both)
        labels = torch.cat([labels for _, labels in both])
        logprobs = decoder.logprobs(found.hidden_states[-1], labels)
    tokens, longest = sum(t for _, t in lengths), max(t for _, t in lengths)
    assert all(states.shape[0] == tokens for states in found.hidden_states)
    assert found.cross_attentions[0].shape[2] == longest
    assert logprobs.shape == (tokens,)
    start = 0
    for source, each in both:
        if len(each):
            expected = reference(model, source, each).decoder_hidden_states[-1][0]
            close(found.hidden_states[-1][start : start + len(each)], expected)
        start += len(each)


def test_nothing_looks_ahead(pair: Pair) -> None:
    """Later tokens do not change states, not even through several layers."""
    _, encoder, decoder, _ = pair
    source, labels = texts((9, 12))[0]
    with torch.no_grad():
        whole = decode(encoder, decoder, [(source, labels)])
        # the shifted labels of a prefix are a prefix of the shifted labels
        part = decode(encoder, decoder, [(source, labels[:7])])
    for maps in whole.attentions:
        assert not maps.triu(1).any()
        torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]))
    close(part.hidden_states[-1], whole.hidden_states[-1][:7])


@pytest.mark.parametrize("kind", ["self", "cross"])
def test_an_ablated_head_gives_nothing(pair: Pair, kind: str) -> None:
    """The reference is transformers with zeros in the head's columns of the output projection."""
    model, encoder, decoder, _ = pair
    (source, labels), *_ = both = texts((9, 6), (3, 8))
    layers, heads = decoder.config.layers.num_hidden_layers, 3
    own, cross = torch.ones(2, layers, heads), torch.ones(2, layers, heads)
    (own if kind == "self" else cross)[0, 1, 2] = 0
    with torch.no_grad():
        read = packed([each for each, _ in both])
        encoded = encoder(read).hidden_states[-1]
        shifted = targets(decoder, [each for _, each in both])
        found = decoder(shifted, read, encoded, own, cross)
        every = decoder(shifted, read, encoded)
    ablated: Any = copy.deepcopy(model)
    if hasattr(ablated, "model"):
        layer = ablated.model.decoder.layers[1]
        output = (layer.self_attn if kind == "self" else layer.encoder_attn).out_proj
    else:
        parts = ablated.decoder.block[1].layer
        output = parts[0].SelfAttention.o if kind == "self" else parts[1].EncDecAttention.o
    size = output.weight.shape[1] // heads
    with torch.no_grad():
        output.weight[:, 2 * size :] = 0
    expected = reference(ablated, source, labels).decoder_hidden_states[-1][0]
    close(found.hidden_states[-1][:6], expected)
    assert torch.equal(found.hidden_states[-1][6:], every.hidden_states[-1][6:])
    assert not torch.allclose(found.hidden_states[-1][:6], every.hidden_states[-1][:6])
    assert found.attentions == found.cross_attentions == ()


def test_relative_positions_may_be_computed_beforehand(pair: Pair) -> None:
    _, encoder, decoder, _ = pair
    source, labels = texts((5, 4))[0]
    with torch.no_grad():
        read, shifted = packed([source]), targets(decoder, [labels])
        encoded = encoder(read).hidden_states[-1]
        relative = decoder.relative_parameters()
        found = decoder(shifted, read, encoded, relative=relative).hidden_states[-1]
        assert torch.equal(found, decoder(shifted, read, encoded).hidden_states[-1])
