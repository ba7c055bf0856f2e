"""Tensors of texts and targets for the verification: from PyTorch, and from the graphs.

A change of all scores by at most ε changes a softmax weight by at most ε / 2, and a score of size s
has a rounding error of about s · 2⁻²⁴. T5's scores are not divided by √p, and become so large that
two correct float32 computations differ by more than a bound for scores of a few units; so do later
tensors. In such cases the tolerance follows from the reference's own error against float64.

Notation as in `model.numerics.comparison`.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import TextVectors
from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.decoder.decoder import Decoder
from model.encoder.encoder import Encoder
from model.export.samples import Samples
from model.numerics.batch import Batch, pack
from model.numerics.comparison import (
    Floats,
    Ids,
    Key,
    Kind,
    TargetTensors,
    Tolerance,
    keyed,
    random_labels,
    shift_right,
    task_key,
)
from model.numerics.pooling import TextPooling, Vector
from model.numerics.task_head import rows_of, text_scores
from model.packing import PackedBatch
from model.runtimes import capabilities
from model.runtimes.capabilities import TaskHead, capability, find
from model.runtimes.contract import Decoding, Heads, Runtime
from model.runtimes.pytorch import Modules, TorchDecoder, TorchEncoderHeads
from model.tasks.head import TaskModule, scores_of_text

MARGIN = 4.0
"""Allowed difference of two float32 computations, as a multiple of one's error against float64."""
MOST = 100.0
"""Largest factor of a kind's bound; beyond, float32 cannot be a reference."""


def with_rounding(
    modules: Modules,
    batches: Iterable[Batch],
    vectors: TextVectors,
    tolerances: Mapping[Kind, Tolerance],
) -> Mapping[Kind, Tolerance]:
    """Return tolerances widened by the reference's own rounding error.

    The absolute bound of a kind becomes `MARGIN` times the largest difference of any of its tensors
    from float64, minus what its relative bound allows there, rounded up to one digit. It never
    decreases, and increases at most `MOST`-fold.
    """
    exact = Modules(
        copy.deepcopy(modules.encoder).double(),
        copy.deepcopy(modules.head).double() if modules.head else None,
        copy.deepcopy(modules.decoder).double() if modules.decoder else None,
    )
    needed: dict[Kind, float] = {}
    for batch in batches:
        rounded = reference_tensors(modules, batch, vectors)
        for approximate, expected in zip(
            rounded, reference_tensors(exact, batch, vectors), strict=True
        ):
            for key, tensor in expected.items():
                gap = float(np.abs(approximate[key] - tensor).max(initial=0.0))
                size = float(np.abs(tensor).max(initial=0.0))
                beyond = MARGIN * gap - tolerances[key.kind].rtol * size
                needed[key.kind] = max(needed.get(key.kind, 0.0), beyond)
    return {
        kind: _allowing(tolerance, needed.get(kind, 0.0)) for kind, tolerance in tolerances.items()
    }


def reference_tensors(
    modules: Modules, batch: Batch, vectors: TextVectors
) -> list[dict[Key, Floats]]:
    """Return all tensors of each text and of a random target, in the modules' type."""
    encoder, head, decoder = modules
    texts = torch_tensors(encoder, batch, vectors, head)
    if decoder is not None:
        own = partial(torch_targets, decoder)
        _add_targets(texts, batch, encoder.config, TorchDecoder(decoder), own)
    return texts


def candidate_tensors(
    runtime: Runtime, batch: Batch, vectors: TextVectors
) -> list[dict[Key, Floats]]:
    """Return the same tensors from the graphs; targets are decoded over the graphs' own states."""
    texts = runtime_tensors(runtime, batch, vectors)
    if decoder := find(runtime, capabilities.Decoder):
        _add_targets(texts, batch, runtime.config, decoder, partial(runtime_targets, decoder))
    return texts


def _add_targets(
    texts: Sequence[dict[Key, Floats]],
    batch: Batch,
    config: EncoderConfig,
    of: capabilities.Decoder,
    targets_of: Callable[[Batch, list[Floats], list[Ids]], list[TargetTensors]],
) -> None:
    """Add each target's tensors and value products of all heads to the tensors of its text."""
    encoded = [text[Key("hidden", config.num_hidden_layers)] for text in texts]
    targets = targets_of(batch, encoded, labels_for(batch, of.config))
    heads = range(of.config.layers.num_attention_heads)
    for text, target, last in zip(texts, targets, encoded, strict=True):
        states = target.hidden[:-1]
        text.update(target.keyed())
        text.update(of_values(of.heads["decoder"], states, heads, kind="decoder_values"))
        text.update(of_values(of.heads["cross"], [last] * len(states), heads, kind="cross_values"))


def _allowing(tolerance: Tolerance, needed: float) -> Tolerance:
    """Return a tolerance widened by a difference; unchanged if the difference is not finite."""
    if not tolerance.atol < needed < math.inf:
        return tolerance
    digit = 10.0 ** math.floor(math.log10(needed))
    atol = float(f"{math.ceil(needed / digit) * digit:.0e}")
    return replace(tolerance, atol=min(atol, MOST * tolerance.atol))


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

    `encoded` has the last hidden state `[S, H]` of each text.
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
        own = [decoder.heads["decoder"].attention(hidden[n], hidden[n], n, heads) for n in layers]
        tensors.append(
            TargetTensors(
                np.stack(hidden),
                np.stack(queries),
                np.stack(own),
                np.stack(
                    [decoder.heads["cross"].attention(queries[n], keys, n, heads) for n in layers]
                ),
                decoder.logprobs(hidden[-1], labels[text]),
            )
        )
    return tensors


def pooled_vectors(encoder: Encoder, batch: Batch, vectors: TextVectors) -> list[Vector]:
    """Return the pooled last hidden state of each text, `[H]`, or `[n · H]` for n modes."""
    with torch.inference_mode():
        hidden = encoder(PackedBatch.of(batch)).hidden_states[-1].numpy()
    bounds = itertools.pairwise(batch.cu_seqlens)
    return [vectors.pool(hidden[start:end], vectors.pooling) for start, end in bounds]


def calibration_vectors(
    encoder: Encoder, samples: Samples, sentence: SentenceConfig, tensors: Mapping[str, Tensor]
) -> Tensor:
    """Return the pooled vectors of the samples for calibration, without a prompt.

    `tensors` are the parameters of its modules, and of a pooling by attention. The result is `[n,
    H]`, or `[n, m · H]` for m modes; n is 0 if the tokenizer has a token for no line.
    """
    own = {name: tensor.numpy() for name, tensor in tensors.items()}
    pipeline = TextVectors.with_tensors(sentence, encoder.config, own)
    vectors = [
        torch.from_numpy(vector)
        for batch in samples.calibration(long=False)
        for vector in pooled_vectors(encoder, batch, pipeline)
    ]
    return torch.stack(vectors) if vectors else torch.empty(0, encoder.config.hidden_size)


def torch_tensors(
    encoder: Encoder, batch: Batch, vectors: TextVectors, head: TaskModule | None = None
) -> list[dict[Key, Floats]]:
    """Return the reference tensors of each text of a batch."""
    with torch.inference_mode():
        output = encoder(PackedBatch.of(batch), output_attentions=True)
    hidden = [state.numpy() for state in output.hidden_states]
    maps = [weights.numpy() for weights in output.attentions]
    texts, reference = [], TorchEncoderHeads(encoder)
    heads = range(encoder.config.num_attention_heads)
    for row, (start, end) in enumerate(itertools.pairwise(batch.cu_seqlens)):
        s = end - start
        own = [state[start:end] for state in hidden]
        of_text = np.stack([weights[row, :, :s, :s] for weights in maps])
        segment = int(batch.token_type_ids[start])
        values = of_values(reference, own[:-1], heads, segment)
        texts.append(keyed(own, of_text, vectors.unit) | values)
        if head is not None:
            scores = scores_of_text(head, output.hidden_states[-1][start:end])
            texts[-1][task_key(head.config)] = scores
    return texts


def runtime_tensors(
    runtime: Runtime, batch: Batch, vectors: TextVectors
) -> list[dict[Key, Floats]]:
    """Return the tensors of each text of a batch from the graphs, by a service's calls."""
    config, heads_of = runtime.config, capability(runtime, Heads)
    texts, last = range(len(batch.padded_index)), config.num_hidden_layers
    layers, heads = range(last + 1), range(config.num_attention_heads)
    requests = [(text, layer) for text in texts for layer in layers]
    poolings = [TextPooling(text, last, vectors.pooling) for text in texts]
    kept, _ = runtime.encode(batch, requests, [])
    states = [np.asarray(state) for state in kept]
    _, pooled = runtime.encode(batch, [], poolings)  # by the graph of vectors, if there is one
    tensors = []
    for text, vector in zip(texts, vectors.units(pooled), strict=True):
        own = states[text * len(layers) : (text + 1) * len(layers)]
        segment = int(batch.token_type_ids[batch.cu_seqlens[text]])
        maps = [
            heads_of.attention(own[layer], own[layer], layer, heads, segment)
            for layer in range(last)
        ]
        values = of_values(heads_of, own[:-1], heads, segment)
        by_key = keyed(own, np.stack(maps), vectors.unit) | values
        tensors.append(by_key | {Key("pooled"): vector})
    if head := find(runtime, TaskHead):
        kept, pooled = runtime.encode(batch, *rows_of(head.config, texts, last))
        scores = text_scores(head.config, [*map(np.asarray, kept), *pooled], head.score)
        for by_key, of_text in zip(tensors, scores, strict=True):
            by_key[task_key(head.config)] = of_text
    return tensors


def of_values(
    outputs: Heads,
    states: Iterable[Floats],
    heads: Sequence[int],
    segment: int = 0,
    kind: Kind = "values",
) -> dict[Key, Floats]:
    """Return value products of heads of each layer, for the states that enter the layers."""
    products = {
        Key(kind, layer): outputs.value_products(own, layer, heads, segment)
        for layer, own in enumerate(states)
    }
    return {key: own.reshape(len(own), -1) for key, own in products.items()}
