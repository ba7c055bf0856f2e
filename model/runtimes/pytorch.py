"""Float32 modules of an artifact in eager PyTorch, on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from model.artifact.decomposition import DecomposedRows, DecompositionStep
from model.artifact.manifest import DECODER_WEIGHTS, TASK_WEIGHTS, WEIGHTS, Artifact
from model.artifact.signature import MapKind
from model.attention.positions import distances
from model.attention.weights import (
    AttentionRule,
    Heads,
    attention_weights,
    some_heads,
    value_products,
)
from model.checkpoint import build_encoder, load_weights
from model.decoder.checkpoint import load_decoder_weights
from model.decoder.decoder import Decoder
from model.decomposition.layers import EncoderDecomposition
from model.encoder.encoder import Encoder
from model.errors import ArtifactError
from model.low_rank import LowRank
from model.numerics.batch import Batch, Ids
from model.packing import PackedBatch
from model.runtimes import capabilities
from model.runtimes.capabilities import (
    Decomposition,
    HeadMaps,
    HeadOutputs,
    HeadScoring,
    TaskHead,
    lacking_weights,
)
from model.runtimes.contract import LOGITS, Decoding, Floats, HeadScores, HiddenState, Resources
from model.runtimes.host import HostRuntime, cut
from model.runtimes.host_graphs import in_parts
from model.tasks.checkpoint import load_task_weights
from model.tasks.head import TaskModule


class TorchDecoder(capabilities.Decoder):
    """Decoder of a runtime in float32."""

    def __init__(self, decoder: Decoder) -> None:
        self.config = decoder.config
        self._decoder = decoder
        self._heads = decoder.config.layers.num_attention_heads
        self._rows = max(1, LOGITS // decoder.config.layers.vocab_size)
        with torch.inference_mode():
            self._relative = decoder.relative_parameters()
            self._parameters: dict[MapKind, list[dict[str, Tensor]]] = {
                "decoder": decoder.head_parameters(),
                "cross": decoder.cross_head_parameters(),
            }

    def decode(self, asked: Decoding) -> tuple[list[Floats], list[Floats]]:
        """Return `[T, H]` per state, and per layer's query states."""
        masks = (asked.head_mask, asked.cross_head_mask)
        with torch.inference_mode():
            output = self._decoder(
                PackedBatch.of(asked.target),
                PackedBatch.of(asked.source),
                torch.from_numpy(asked.encoded),
                *(None if mask is None else torch.from_numpy(mask) for mask in masks),
                relative=self._relative,
            )
        states, cross = (
            {layer: rows.numpy() for layer, rows in enumerate(by_layer)}
            for by_layer in (output.hidden_states, output.cross_queries)
        )
        return cut(states, asked.target, asked.states), cut(cross, asked.target, asked.cross)

    def attention_of(
        self, kind: MapKind, queries: Floats, keys: Floats, layer: int, heads: Sequence[int]
    ) -> Floats:
        """Return maps `[heads, T, S]`."""
        with torch.inference_mode():
            parameters = some_heads(self._parameters[kind][layer], heads, self._heads)
        return maps_of(parameters, self._rule(kind), queries, keys)

    def value_products_of(
        self, kind: MapKind, states: Floats, layer: int, heads: Sequence[int]
    ) -> Floats:
        """Return value products `[S, heads, heads]`."""
        own, cross = self._decoder.layer(layer).own, self._decoder.layer(layer).cross
        all_heads = own.value_parameters() if kind == "decoder" else cross.value_parameters()
        return products_of(some_heads(all_heads, heads, self._heads), self._rule(kind), states)

    def logprobs(self, rows: Floats, labels: Ids) -> Floats:
        """Return log-probabilities `[n]`, computed in blocks of rows."""
        pairs = (torch.split(torch.from_numpy(array), self._rows) for array in (rows, labels))
        with torch.inference_mode():
            parts = [self._decoder.logprobs(*pair).numpy() for pair in zip(*pairs, strict=True)]
        return np.concatenate(parts)

    def _rule(self, kind: MapKind) -> AttentionRule:
        return self._decoder.rule if kind == "decoder" else self._decoder.cross_rule


def maps_of(
    parameters: Mapping[str, Tensor], rule: AttentionRule, queries: Floats, keys: Floats
) -> Floats:
    """Return maps `[n, T, S]` of heads with these parameters, for states `[T, H]` and `[S, H]`."""
    states = (torch.from_numpy(array)[None] for array in (queries, keys))
    with torch.inference_mode():
        maps: Floats = attention_weights(Heads.from_parameters(parameters, rule), *states)[
            0
        ].numpy()
    return maps


def products_of(parameters: Mapping[str, Tensor], rule: AttentionRule, states: Floats) -> Floats:
    """Return value products `[S, n, n]` of heads with these parameters, for states `[S, H]`."""

    def of_block(rows: Floats) -> Floats:
        products: Floats = value_products(parameters, rule, torch.from_numpy(rows)).numpy()
        return products

    with torch.inference_mode():
        return in_parts(states, len(parameters["output_weight"]), of_block)


def load(artifact: Artifact, _: Resources) -> PyTorchRuntime:
    """Load the modules; torch's own threads compute each call."""
    return PyTorchRuntime(load_encoder(artifact), load_head(artifact), load_decoder(artifact))


def load_encoder(artifact: Artifact) -> Encoder:
    """Load the float32 encoder of an artifact."""
    return load_weights(_whole(artifact, WEIGHTS), artifact.manifest.config)


def load_head(artifact: Artifact) -> TaskModule | None:
    """Load the float32 task head of an artifact; None without one."""
    manifest = artifact.manifest
    if manifest.task is None:
        return None
    path = _whole(artifact, TASK_WEIGHTS)
    return load_task_weights(path, manifest.task, manifest.config.hidden_size)


def load_decoder(artifact: Artifact) -> Decoder | None:
    """Load the float32 decoder of an artifact; None without one."""
    config = artifact.manifest.decoder
    if config is None:
        return None
    return load_decoder_weights(_whole(artifact, DECODER_WEIGHTS), config)


def _whole(artifact: Artifact, name: str) -> Path:
    """Return the path of a file of weights, after a check that it is complete."""
    if message := lacking_weights(artifact.manifest):
        raise ArtifactError(message)
    return artifact.path(name)


class PyTorchRuntime(HostRuntime, HeadMaps, HeadOutputs, HeadScoring, Decomposition):
    """Modules in float32; see `Runtime`."""

    provider = "torch-cpu"

    def __init__(
        self, encoder: Encoder, head: TaskModule | None = None, decoder: Decoder | None = None
    ) -> None:
        self.config = encoder.config
        self._encoder = encoder
        self._merged: tuple[int, PyTorchRuntime] = 0, self
        self.parts = [TorchDecoder(decoder)] if decoder else []
        if head:
            self.parts.append(TaskHead(head.config, functools.partial(scores_of, head)))
        with torch.inference_mode():
            self._head_parameters = encoder.head_parameters()
            self._relative = encoder.relative_parameters()

    def hidden_states(
        self, batch: Batch, layers: Sequence[int], head_mask: Floats | None = None
    ) -> list[Floats]:
        """Return `[T, H]` per layer."""
        mask = None if head_mask is None else torch.from_numpy(head_mask)
        with torch.inference_mode():
            packed = PackedBatch.of(batch)
            states = self._encoder(packed, mask, relative=self._relative).hidden_states
        return [states[layer].numpy() for layer in layers]

    def attention(
        self,
        queries: HiddenState,
        keys: HiddenState,
        layer: int,
        heads: Sequence[int],
        segment: int = 0,
    ) -> Floats:
        """Return maps `[heads, T, S]`."""
        if segment:
            return self._with(segment).attention(queries, keys, layer, heads)
        all_heads = self._head_parameters[layer]
        with torch.inference_mode():
            parameters = some_heads(all_heads, heads, self.config.num_attention_heads)
        states = np.asarray(queries), np.asarray(keys)
        return maps_of(parameters, self._encoder.rule, *states)

    def value_products(
        self, states: Floats, layer: int, heads: Sequence[int], segment: int = 0
    ) -> Floats:
        """Return value products `[S, heads, heads]`."""
        if segment:
            return self._with(segment).value_products(states, layer, heads)
        all_heads = self._encoder.layer(layer).value_parameters()
        parameters = some_heads(all_heads, heads, self.config.num_attention_heads)
        return products_of(parameters, self._encoder.rule, states)

    def head_scores(
        self, states: Floats, layer: int, heads: Sequence[int], segment: int = 0
    ) -> HeadScores:
        """Return queries, keys and scores."""
        if segment:
            return self._with(segment).head_scores(states, layer, heads)
        all_heads = self._head_parameters[layer]
        with torch.inference_mode():
            parameters = some_heads(all_heads, heads, self.config.num_attention_heads)
            requested = Heads.from_parameters(parameters, self._encoder.rule)
            queries, keys = requested.projected(*[torch.from_numpy(states)[None]] * 2)
            distance = distances(len(states), len(states), queries.device)
            scores = requested.scores(queries, keys, distance)
        return HeadScores(*(tensor[0].numpy() for tensor in (queries, keys, scores)))

    def decompose(self, step: DecompositionStep) -> DecomposedRows:
        """Return the rows after their layer, and values for the next one."""
        if step.segment:
            return self._with(step.segment).decompose(replace(step, segment=0))
        with torch.inference_mode():
            parts = torch.from_numpy(step.parts)
            if step.states is not None and step.values is not None:
                rows = torch.arange(step.first_row, step.first_row + len(parts))
                states, of_all = map(torch.from_numpy, (step.states, step.values))
                parts = self._parts.through(parts, step.layer, rows, states, of_all)
            if step.layer + 1 == self.config.num_hidden_layers:
                return DecomposedRows(parts.numpy(), None)
            values = self._parts.values(parts, step.layer + 1)
            return DecomposedRows(parts.numpy(), values.contiguous().numpy())

    def _with(self, segment: int) -> PyTorchRuntime:
        """Return a runtime with the layers of a segment; only the last one is kept."""
        number, merged = self._merged
        if number != segment:
            merged = PyTorchRuntime(with_merged_layers(self._encoder, segment))
            self._merged = segment, merged
        return merged

    @functools.cached_property
    def _parts(self) -> EncoderDecomposition:
        with torch.inference_mode():
            return EncoderDecomposition(self._encoder)


def scores_of(head: TaskModule, rows: Floats) -> Floats:
    """Return scores `[n, C]` or `[1, V]`."""
    with torch.inference_mode():
        scores: Floats = head(torch.from_numpy(rows)).numpy()
    return scores


def with_merged_layers(encoder: Encoder, segment: int) -> Encoder:
    """Return an encoder with the adapter of a segment merged into its layers.

    Each linear map W of its layers is W + B_k A_k. Its embeddings stay without the adapter, as the
    caller gives the layers their input.
    """
    config = encoder.config.model_copy(update={"adapters": None})
    state = {key: tensor for key, tensor in encoder.state_dict().items() if ".low_rank." not in key}
    with torch.inference_mode(mode=False), torch.no_grad():
        for path, module in encoder.layers.named_modules(prefix="layers"):
            if isinstance(module, LowRank):
                key = path.replace("low_rank.", "") + ".weight"
                state[key] = state[key] + module.matrix(segment)
        return build_encoder(config, state, source=f"segment {segment}")
