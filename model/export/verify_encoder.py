"""Tensors of texts for the verification: from a PyTorch encoder, and from its graphs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from model.artifact.vectors import TextVectors
from model.encoder.encoder import Encoder
from model.numerics.batch import Batch
from model.numerics.comparison import Floats, Key, keyed, task_key
from model.numerics.pooling import TextPooling
from model.numerics.task_head import rows_of, text_scores
from model.packing import PackedBatch
from model.runtimes.capabilities import HeadMaps, HeadOutputs, TaskHead, capability, find
from model.runtimes.contract import Runtime
from model.runtimes.pytorch import PyTorchRuntime
from model.tasks.head import TaskModule, scores_of_text


def torch_tensors(
    encoder: Encoder, batch: Batch, vectors: TextVectors, head: TaskModule | None = None
) -> list[dict[Key, Floats]]:
    """Return the reference tensors of each text of a batch."""
    with torch.inference_mode():
        output = encoder(PackedBatch.of(batch), output_attentions=True)
    hidden = [state.numpy() for state in output.hidden_states]
    maps = [weights.numpy() for weights in output.attentions]
    texts, reference = [], PyTorchRuntime(encoder)
    for row, (start, end) in enumerate(itertools.pairwise(batch.cu_seqlens)):
        s = end - start
        own = [state[start:end] for state in hidden]
        of_text = np.stack([weights[row, :, :s, :s] for weights in maps])
        segment = int(batch.token_type_ids[start])
        texts.append(keyed(own, of_text, vectors.unit) | of_values(reference, own, segment))
        if head is not None:
            scores = scores_of_text(head, output.hidden_states[-1][start:end])
            texts[-1][task_key(head.config)] = scores
    return texts


def runtime_tensors(
    runtime: Runtime, batch: Batch, vectors: TextVectors
) -> list[dict[Key, Floats]]:
    """Return the tensors of each text of a batch from the graphs, by a service's calls."""
    config, heads_of = runtime.config, capability(runtime, HeadMaps)
    texts, last = range(len(batch.padded_index)), config.num_hidden_layers
    layers, heads = range(last + 1), range(config.num_attention_heads)
    requests = [(text, layer) for text in texts for layer in layers]
    poolings = [TextPooling(text, last, vectors.pooling) for text in texts]
    states, pooled = runtime.encode(batch, requests, poolings)
    tensors = []
    for text, vector in zip(texts, vectors.units(pooled), strict=True):
        own = states[text * len(layers) : (text + 1) * len(layers)]
        segment = int(batch.token_type_ids[batch.cu_seqlens[text]])
        maps = [
            heads_of.attention(own[layer], own[layer], layer, heads, segment)
            for layer in range(last)
        ]
        by_key = keyed(own, np.stack(maps), vectors.unit) | of_values(runtime, own, segment)
        tensors.append(by_key | {Key("pooled"): vector})
    if head := find(runtime, TaskHead):
        rows = runtime.encode(batch, *rows_of(head.config, texts, last))
        scores = text_scores(head.config, [*rows[0], *rows[1]], head.score)
        for by_key, of_text in zip(tensors, scores, strict=True):
            by_key[task_key(head.config)] = of_text
    return tensors


def of_values(runtime: Runtime, hidden: Sequence[Floats], segment: int) -> dict[Key, Floats]:
    """Return value products of all heads of each layer, for one text's hidden states."""
    heads, outputs = range(runtime.config.num_attention_heads), capability(runtime, HeadOutputs)
    return {
        Key("values", layer): outputs.value_products(states, layer, heads, segment).reshape(
            len(states), -1
        )
        for layer, states in enumerate(hidden[:-1])
    }
