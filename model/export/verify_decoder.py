"""Tensors of targets for the verification: from a PyTorch decoder, and from its graphs.

Notation as in `model.numerics.targets`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from model.config.decoder import DecoderConfig
from model.decoder.decoder import Decoder
from model.numerics.batch import Batch, pack
from model.numerics.comparison import Floats, Key
from model.numerics.shift import shift_right
from model.numerics.targets import Ids, TargetTensors, random_labels
from model.packing import PackedBatch
from model.runtimes import capabilities
from model.runtimes.capabilities import capability
from model.runtimes.contract import Decoding, Runtime
from model.runtimes.pytorch_decoder import TorchDecoder


def add_targets(
    decoder: Decoder,
    runtime: Runtime,
    source: Batch,
    tensors: tuple[list[dict[Key, Floats]], list[dict[Key, Floats]]],
) -> None:
    """Add the tensors of one random target per text.

    Args:
        decoder: decoder in float32.
        runtime: runtime of the graphs.
        source: the texts.
        tensors: PyTorch's tensors of each text, and those of the graphs; targets are decoded over
            their last hidden states.

    """
    references, candidates = tensors
    labels = labels_for(source, decoder.config)
    last = Key("hidden", runtime.config.num_hidden_layers)
    expected = torch_targets(decoder, source, [text[last] for text in references], labels)
    encoded = [text[last] for text in candidates]
    graphs = capability(runtime, capabilities.Decoder)
    actual = runtime_targets(graphs, source, encoded, labels)
    for side, texts, targets in (
        (TorchDecoder(decoder), references, expected),
        (graphs, candidates, actual),
    ):
        for text, target in zip(texts, targets, strict=True):
            text.update(target.keyed() | target_values(side, target, text[last]))


def target_values(
    of: capabilities.Decoder, target: TargetTensors, encoded: Floats
) -> dict[Key, Floats]:
    """Return value products of all heads of each layer, of self- and cross-attention."""
    heads, values = range(of.config.layers.num_attention_heads), {}
    for layer, own in enumerate(target.hidden[:-1]):
        values[Key("decoder_values", layer)] = of.value_products_of("decoder", own, layer, heads)
        values[Key("cross_values", layer)] = of.value_products_of("cross", encoded, layer, heads)
    return {key: products.reshape(len(products), -1) for key, products in values.items()}


def labels_for(batch: Batch, decoder: DecoderConfig) -> list[Ids]:
    """Return random labels of one target per text: as long as the texts, in the opposite order."""
    lengths = np.diff(batch.cu_seqlens).tolist()
    return [random_labels(decoder, n, seed) for seed, n in enumerate(reversed(lengths))]


def shifted(labels: Sequence[Ids], decoder: DecoderConfig) -> Batch:
    """Return targets shifted right for the decoder, packed."""
    read = [shift_right(target, decoder.start_token_id) for target in labels]
    return pack([(ids, np.zeros_like(ids)) for ids in read])


def torch_targets(
    decoder: Decoder, source: Batch, encoded: Sequence[Floats], labels: Sequence[Ids]
) -> list[TargetTensors]:
    """Return the reference tensors of each text's target.

    Args:
        decoder: decoder in float32.
        source: the texts.
        encoded: the last hidden state of each text, `[S, H]`.
        labels: labels of each text's target.

    """
    target = shifted(labels, decoder.config)
    with torch.inference_mode():
        output = decoder(
            PackedBatch.of(target),
            PackedBatch.of(source),
            torch.from_numpy(np.concatenate(encoded)),
            output_attentions=True,
        )
        last, all_labels = output.hidden_states[-1], torch.from_numpy(np.concatenate(labels))
        logprobs = decoder.logprobs(last, all_labels).numpy()
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
    decoder: capabilities.Decoder,
    source: Batch,
    encoded: Sequence[Floats],
    labels: Sequence[Ids],
) -> list[TargetTensors]:
    """Return the tensors of each text's target from the graphs, by a service's calls."""
    config, last = decoder.config, decoder.config.layers.num_hidden_layers
    layers, texts, heads = range(last), range(len(labels)), range(config.layers.num_attention_heads)
    states, cross = decoder.decode(
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
        own = [decoder.attention_of("decoder", hidden[n], hidden[n], n, heads) for n in layers]
        tensors.append(
            TargetTensors(
                np.stack(hidden),
                np.stack(queries),
                np.stack(own),
                np.stack(
                    [decoder.attention_of("cross", queries[n], keys, n, heads) for n in layers]
                ),
                decoder.logprobs(hidden[-1], labels[text]),
            )
        )
    return tensors
