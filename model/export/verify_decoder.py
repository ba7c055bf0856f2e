"""A decoder in PyTorch and its graphs: all tensors of targets of the texts that are verified.

Notation: that of `model.artifact.targets`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from model.artifact.batch import Batch, pack
from model.artifact.compare import Floats, Key
from model.artifact.shift import shift_right
from model.artifact.signature import MapKind
from model.artifact.targets import Ids, TargetTensors, random_labels
from model.config.decoder import DecoderConfig
from model.decoder.decoder import Decoder
from model.packing import PackedBatch
from model.runtimes.contract import Decoding, Runtime
from model.runtimes.pytorch_decoder import TorchDecoder


def add_targets(
    decoder: Decoder,
    runtime: Runtime,
    source: Batch,
    tensors: tuple[list[dict[Key, Floats]], list[dict[Key, Floats]]],
) -> None:
    """Add the tensors of a random target of each text.

    Args:
        decoder: in float32.
        runtime: of the graphs.
        source: the texts.
        tensors: each text's from PyTorch, and those from the graphs; the last hidden states among
            them are what the targets are decoded over.

    """
    references, candidates = tensors
    labels = labels_for(source, decoder.config)
    last = Key("hidden", runtime.config.num_hidden_layers)
    expected = torch_targets(decoder, source, [each[last] for each in references], labels)
    encoded = [each[last] for each in candidates]
    found = runtime_targets(runtime, decoder.config, source, encoded, labels)
    for of, texts, targets in (
        (TorchDecoder(decoder), references, expected),
        (runtime, candidates, found),
    ):
        for text, target in zip(texts, targets, strict=True):
            text.update(target.keyed() | target_values(of, decoder.config, target, text[last]))


class Values(Protocol):
    """What tells what heads of a decoder add; see `Runtime.value_products`."""

    def value_products(
        self, states: Floats, layer: int, heads: Sequence[int], kind: MapKind
    ) -> Floats:
        """`[S, heads, heads]`."""


def target_values(
    of: Values, config: DecoderConfig, target: TargetTensors, encoded: Floats
) -> dict[Key, Floats]:
    """Products of what all heads of each layer add: the decoder's own, and cross-attention's."""
    heads, found = range(config.layers.num_attention_heads), {}
    for layer, own in enumerate(target.hidden[:-1]):
        found[Key("decoder_values", layer)] = of.value_products(own, layer, heads, "decoder")
        found[Key("cross_values", layer)] = of.value_products(encoded, layer, heads, "cross")
    return {key: products.reshape(len(products), -1) for key, products in found.items()}


def labels_for(batch: Batch, decoder: DecoderConfig) -> list[Ids]:
    """Random labels of a target a text: as long as the texts are, in the opposite order."""
    lengths = np.diff(batch.cu_seqlens).tolist()
    return [random_labels(decoder, n, seed) for seed, n in enumerate(reversed(lengths))]


def shifted(labels: Sequence[Ids], decoder: DecoderConfig) -> Batch:
    """Targets as the decoder reads them, packed."""
    read = [shift_right(each, decoder.start_token_id) for each in labels]
    return pack([(ids, np.zeros_like(ids)) for ids in read])


def torch_targets(
    decoder: Decoder, source: Batch, encoded: Sequence[Floats], labels: Sequence[Ids]
) -> list[TargetTensors]:
    """The reference tensors of each text's target.

    Args:
        decoder: in float32.
        source: the texts.
        encoded: the last hidden state of each, `[S, H]`.
        labels: of each text's target.

    """
    target = shifted(labels, decoder.config)
    with torch.inference_mode():
        output = decoder(
            PackedBatch.of(target),
            PackedBatch.of(source),
            torch.from_numpy(np.concatenate(encoded)),
            output_attentions=True,
        )
        last, every = output.hidden_states[-1], torch.from_numpy(np.concatenate(labels))
        logprobs = decoder.logprobs(last, every).numpy()
    texts = []
    for row, (start, end) in enumerate(itertools.pairwise(target.cu_seqlens)):
        t, s = end - start, len(encoded[row])
        texts.append(
            TargetTensors(
                np.stack([state[start:end].numpy() for state in output.hidden_states]),
                np.stack([queries[start:end].numpy() for queries in output.cross_queries]),
                np.stack([maps[row, :, :t, :t].numpy() for maps in output.attentions]),
                np.stack([maps[row, :, :t, :s].numpy() for maps in output.cross_attentions]),
                logprobs[start:end],
            )
        )
    return texts


def runtime_targets(
    runtime: Runtime,
    config: DecoderConfig,
    source: Batch,
    encoded: Sequence[Floats],
    labels: Sequence[Ids],
) -> list[TargetTensors]:
    """The same tensors from the artifact's graphs, as a service asks for them."""
    layers, last = range(config.layers.num_hidden_layers), config.layers.num_hidden_layers
    texts, heads = range(len(labels)), range(config.layers.num_attention_heads)
    states, cross = runtime.decode(
        Decoding(
            source,
            np.concatenate(encoded),
            shifted(labels, config),
            [(text, layer) for text in texts for layer in (*layers, last)],
            [(text, layer) for text in texts for layer in layers],
        )
    )
    tensors = []
    for text in texts:
        hidden = states[text * (last + 1) : (text + 1) * (last + 1)]
        queries, keys = cross[text * last : (text + 1) * last], encoded[text]
        own = [runtime.attention(hidden[n], hidden[n], n, heads, "decoder") for n in layers]
        tensors.append(
            TargetTensors(
                np.stack(hidden),
                np.stack(queries),
                np.stack(own),
                np.stack([runtime.attention(queries[n], keys, n, heads, "cross") for n in layers]),
                runtime.logprobs(hidden[-1], labels[text]),
            )
        )
    return tensors
