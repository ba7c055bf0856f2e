from __future__ import annotations

from typing import Any

import pytest
import torch

from model.decoder.layers import PostNormDecoderLayer, PreNormDecoderLayer
from tests.model.decoder.conftest import Pair
from tests.model.families.decoder_parity import packed, targets


def test_cross_attention_is_asked_what_transformers_asks_it(pair: Pair) -> None:
    """The query states of a layer equal the input of transformers' cross-attention."""
    model, encoder, decoder, _ = pair
    given: list[torch.Tensor] = []

    def note(module: Any, args: Any, fields: Any) -> None:
        given.append((args or [fields["hidden_states"]])[0][0])

    for module in model.modules():
        if type(module).__name__ == "T5Attention" and module.is_decoder and not module.is_causal:
            module.register_forward_pre_hook(note, with_kwargs=True)
    layers = getattr(getattr(model, "model", None), "decoder", None)
    for layer in layers.layers if layers is not None else []:
        layer.encoder_attn.register_forward_pre_hook(note, with_kwargs=True)
    source, labels = torch.arange(3, 11), torch.arange(9, 14)
    with torch.no_grad():
        model(input_ids=source[None], labels=labels[None])
        read = packed([source])
        encoded = encoder(read).hidden_states[-1]
        found = decoder(targets(decoder, [labels]), read, encoded).cross_queries
    assert len(given) == len(found) == 3
    for ours, theirs in zip(found, given, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [PostNormDecoderLayer, PreNormDecoderLayer])
def test_an_order_has_its_layer(kind: type, pair: Pair) -> None:
    order = pair[2].config.layers.layer.order
    expected = PostNormDecoderLayer if order == "post_norm" else PreNormDecoderLayer
    assert isinstance(pair[2].layer(0), kind) == (kind is expected)
