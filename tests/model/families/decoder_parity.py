"""Comparison of a family's random encoder–decoders with transformers, which writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from model.artifact.signature import MapKind
from model.attention.weights import (
    AttentionRule,
    Heads,
    attention_weights,
    some_heads,
    value_products,
)
from model.checkpoint import load_checkpoint
from model.decoder.decoder import Decoder, DecoderOutput, load_decoder
from model.encoder.encoder import Encoder
from model.numerics.batch import pack
from model.numerics.comparison import shift_right
from model.packing import PackedBatch
from tests.model.families.parity import randomized
from tests.model.packed_vectors import assert_packed_vectors_equal

VOCABULARY = 61
LENGTHS = ((9, 5), (1, 1), (17, 33), (33, 2))
"""Numbers of tokens of sources and of their targets."""
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 28,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 3,
    "max_position_embeddings": 48,
    "pad_token_id": 1,
}
"""Names of attention modules in BART and its descendants."""
Pairs = Sequence[tuple[Tensor, Tensor]]
PROJECTION = re.compile(
    r"decoder\.\w+\.(\d+)\..*(self_attn|SelfAttention|encoder_attn|EncDecAttention)"
    r"\.(v|v_proj|o|out_proj)"
)
"""Name of a value or output projection in a decoder of transformers: layer and kind of heads."""


def saved_pair(model: PreTrainedModel, folder: Path) -> tuple[Encoder, Decoder]:
    """Return both halves of a checkpoint of the randomized model."""
    randomized(model)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.normal_()
        for module in model.modules():
            if isinstance(module, MarianSinusoidalPositionalEmbedding):
                module.weight.copy_(module.create_weight())  # which is not saved
    model.save_pretrained(folder)
    encoder = load_checkpoint(folder)
    decoder = load_decoder(folder, encoder.config)
    assert decoder is not None
    return encoder, decoder


def pairs_of(decoder: Decoder, lengths: Sequence[tuple[int, int]]) -> Pairs:
    """Return random sources and labels, with a padding token inside long ones.

    Labels have none if the decoder begins with their last token, because transformers finds that
    token by counting the tokens that are not padding.
    """
    generator = torch.Generator().manual_seed(1)
    pairs = []
    for lengths_of_pair in lengths:
        pair = [torch.randint(3, 50, (n,), generator=generator) for n in lengths_of_pair]
        for ids in pair if decoder.config.start_token_id is not None else pair[:1]:
            ids[4:5] = decoder.config.layers.pad_token_id
        pairs.append((pair[0], pair[1]))
    return pairs


def packed(texts: Sequence[Tensor]) -> PackedBatch:
    return PackedBatch.of(pack([(ids, [0] * len(ids)) for ids in texts]))


def targets(decoder: Decoder, labels: Sequence[Tensor]) -> PackedBatch:
    start = decoder.config.start_token_id
    return packed([torch.from_numpy(shift_right(each.numpy(), start)) for each in labels])


def decode(encoder: Encoder, decoder: Decoder, pairs: Pairs) -> DecoderOutput:
    source = packed([ids for ids, _ in pairs])
    encoded = encoder(source).hidden_states[-1]
    target = targets(decoder, [labels for _, labels in pairs])
    output: DecoderOutput = decoder(target, source, encoded, output_attentions=True)
    return output


def close(found: Tensor, expected: Tensor, atol: float) -> None:
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


def assert_pair_equal_to(
    reference: PreTrainedModel, folder: Path, lengths: Sequence[tuple[int, int]] = LENGTHS
) -> Decoder:
    """Compare states within 1e-5 of the largest, maps 1e-5, log-probabilities 1e-4.

    Texts are packed for our model, and single for transformers', in float32 and eager. A head that
    is computed alone has the same maps.
    """
    encoder, decoder = saved_pair(reference, folder)
    pairs, theirs_add = pairs_of(decoder, lengths), Added(reference)
    with torch.no_grad():
        encoded = encoder(packed([ids for ids, _ in pairs]), output_attentions=True)
        ours = decode(encoder, decoder, pairs)
        logprobs = decoder.logprobs(ours.hidden_states[-1], torch.cat([t for _, t in pairs]))
        start_s, start_t, sharpest, last_states = 0, 0, 0.0, []
        for row, (source, labels) in enumerate(pairs):
            theirs = reference(
                input_ids=source[None],
                labels=labels[None],
                output_hidden_states=True,
                output_attentions=True,
            )
            s, t = len(source), len(labels)
            last_states.append(theirs.encoder_hidden_states[-1][0].numpy())
            of_source = slice(start_s, start_s := start_s + s)
            of_target = slice(start_t, start_t := start_t + t)
            for states, expected, rows in (
                (encoded.hidden_states, theirs.encoder_hidden_states, of_source),
                (ours.hidden_states, theirs.decoder_hidden_states, of_target),
            ):
                for one, other in zip(states, expected, strict=True):
                    close(one[rows], other[0], 1e-5 * max(1.0, other.abs().max().item()))
            for maps, expected, (queries, keys) in (
                (encoded.attentions, theirs.encoder_attentions, (s, s)),
                (ours.attentions, theirs.decoder_attentions, (t, t)),
                (ours.cross_attentions, theirs.cross_attentions, (t, s)),
            ):
                for one, other in zip(maps, expected, strict=True):
                    close(one[row, :, :queries, :keys], other[0], 1e-5)
                    sharpest = max(sharpest, other.max().item() if keys > 16 else 0.0)
            for maps in ours.attentions:
                assert not maps[row, :, :t, :t].triu(1).any()
            said = theirs.logits[0].log_softmax(-1)[torch.arange(t), labels]
            close(logprobs[of_target], said, 1e-4)
            last = encoded.hidden_states[-1][None, of_source]
            for layer in range(decoder.config.layers.num_hidden_layers):
                entering = ours.hidden_states[layer][None, of_target]
                some = _some(decoder.head_parameters()[layer], decoder.rule, entering, entering)
                close(some, theirs.decoder_attentions[layer][0, [1, 0]], 1e-5)
                own = decoder.value_parameters()[layer]
                theirs_add.equal(own, decoder.rule, entering[0], layer, "decoder")
                entering = ours.cross_queries[layer][None, of_target]
                every = decoder.cross_head_parameters()[layer]
                some = _some(every, decoder.cross_rule, entering, last)
                close(some, theirs.cross_attentions[layer][0, [1, 0]], 1e-5)
                own = decoder.cross_value_parameters()[layer]
                theirs_add.equal(own, decoder.cross_rule, last[0], layer, "cross")
    assert sharpest > 0.4, "attention is nearly even, so that no fault of it would show"
    sources = pack([(ids, [0] * len(ids)) for ids, _ in pairs])
    assert_packed_vectors_equal(encoder, sources, last_states)
    return decoder


class Added:
    """Recorder of the vectors that heads of a decoder in transformers add, in its last pass."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._values: dict[tuple[int, MapKind], Tensor] = {}
        self._outputs: dict[tuple[int, MapKind], Any] = {}
        for name, module in model.named_modules():
            if found := PROJECTION.search(name):
                kind: MapKind = "decoder" if found[2].lower().startswith("self") else "cross"
                place = int(found[1]), kind
                if found[3].startswith("v"):
                    module.register_forward_hook(
                        lambda _, __, rows, place=place: self._values.update({place: rows[0]})
                    )
                else:
                    self._outputs[place] = module

    def each(self, layer: int, kind: MapKind, heads: int) -> Tensor:
        """Return f_h(x_k) of all heads, float64 `[S, N, H]`."""
        weight = self._outputs[layer, kind].weight.double()
        values = self._values[layer, kind].double()
        of_heads = values.reshape(len(values), heads, -1)
        return torch.einsum("snp,hnp->snh", of_heads, weight.reshape(len(weight), heads, -1))

    def equal(
        self,
        every: Mapping[str, Tensor],
        rule: AttentionRule,
        states: Tensor,
        layer: int,
        kind: MapKind,
    ) -> None:
        """Compare the products of all heads, and of heads 1 and 0 alone, in float64."""
        count = len(every["output_weight"])
        added = self.each(layer, kind, count)
        for chosen in (list(range(count)), [1, 0]):
            found = value_products(some_heads(every, chosen, count), rule, states)
            wanted = torch.einsum("sgh,snh->sgn", added[:, chosen], added[:, chosen])
            close(found.double(), wanted, 1e-5 * wanted.abs().max().item())


def _some(every: dict[str, Tensor], rule: AttentionRule, queries: Tensor, keys: Tensor) -> Tensor:
    """Return the products of heads 1 and 0 alone."""
    count = every["query_weight"].shape[0]
    return attention_weights(
        Heads.from_parameters(some_heads(every, [1, 0], count), rule), queries, keys
    )[0]
