"""Float32 modules of an artifact in eager PyTorch, on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from model.artifact.decomposition import DecomposedRows, DecompositionStep
from model.artifact.manifest import DECODER_WEIGHTS, TASK_WEIGHTS, WEIGHTS, Artifact
from model.artifact.signature import HeadGraph
from model.attention import weights
from model.attention.positions import distances
from model.attention.weights import (
    AttentionRule,
    attention_weights,
    some_heads,
    value_products,
)
from model.checkpoint import build_encoder, load_weights
from model.decoder.decoder import Decoder, load_decoder_weights
from model.decomposition.layers import EncoderDecomposition
from model.encoder.encoder import Encoder
from model.errors import ArtifactError
from model.low_rank import LowRank
from model.numerics.batch import Batch, Ids
from model.packing import PackedBatch
from model.runtimes import capabilities
from model.runtimes.capabilities import Decomposition, TaskHead, lacking_weights
from model.runtimes.contract import LOGITS, Decoding, Floats, Heads, HostRuntime, Resources, cut
from model.tasks.checkpoint import load_task_weights
from model.tasks.head import TaskModule


class Modules(NamedTuple):
    """Modules of a checkpoint or an artifact."""

    encoder: Encoder
    head: TaskModule | None = None
    decoder: Decoder | None = None


def load_modules(artifact: Artifact) -> Modules:
    """Load the float32 modules of an artifact.

    Raises:
        ArtifactError: the artifact lacks their weights.

    """
    manifest, path = artifact.manifest, artifact.path
    if message := lacking_weights(manifest):
        raise ArtifactError(message)
    head = decoder = None
    if task := manifest.task:
        head = load_task_weights(path(TASK_WEIGHTS), task, manifest.config.hidden_size)
    if manifest.decoder:
        decoder = load_decoder_weights(path(DECODER_WEIGHTS), manifest.decoder)
    return Modules(load_weights(path(WEIGHTS), manifest.config), head, decoder)


def load(artifact: Artifact, _: Resources) -> PyTorchRuntime:
    """Load the modules; torch's own threads compute each call."""
    return PyTorchRuntime(*load_modules(artifact))


class TorchHeads(Heads):
    """Heads of one kind."""

    def __init__(
        self,
        rule: AttentionRule,
        count: int,
        maps: Sequence[Mapping[str, Tensor]],
        values: Sequence[Mapping[str, Tensor]],
    ) -> None:
        """Keep the parameters of all N heads of each layer, of their maps and their values."""
        self._rule, self._count, self._maps, self._values = rule, count, maps, values

    def of_segment(self, segment: int) -> TorchHeads:  # noqa: ARG002 - no segment has an adapter
        """Return the heads for texts of a segment."""
        return self

    def run(
        self,
        graph: HeadGraph,
        states: Sequence[Floats],
        layer: int,
        heads: Sequence[int],
        segment: int,
    ) -> list[Floats]:
        """Return what a graph computes, by the functions that it is exported from."""
        own, inputs = self.of_segment(segment), [torch.from_numpy(array) for array in states]
        with torch.inference_mode():
            parameters = own._values[layer] if graph == "value_norms" else own._maps[layer]
            parameters = some_heads(parameters, heads, self._count)
            if graph == "value_norms":
                return [value_products(parameters, own._rule, *inputs).numpy()]
            chosen = weights.Heads.from_parameters(parameters, own._rule)
            if graph == "attention":
                return [attention_weights(chosen, *inputs).numpy()]
            (of_text,) = inputs
            projected = chosen.projected(of_text[None], of_text[None])
            scores = chosen.scores(
                *projected, distances(len(of_text), len(of_text), of_text.device)
            )
        return [tensor[0].numpy() for tensor in (*projected, scores)]


class TorchDecoder(capabilities.Decoder):
    """Decoder of a runtime in float32."""

    def __init__(self, decoder: Decoder) -> None:
        self.config = decoder.config
        self._decoder = decoder
        layers, count = decoder.config.layers, decoder.config.layers.num_attention_heads
        self._rows = max(1, LOGITS // layers.vocab_size)
        with torch.inference_mode():
            self._relative = decoder.relative_parameters()
            own = decoder.head_parameters(), decoder.value_parameters()
            cross = decoder.cross_head_parameters(), decoder.cross_value_parameters()
        self.heads = {
            "decoder": TorchHeads(decoder.rule, count, *own),
            "cross": TorchHeads(decoder.cross_rule, count, *cross),
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

    def logprobs(self, rows: Floats, labels: Ids) -> Floats:
        """Return log-probabilities `[n]`, computed in blocks of rows."""
        pairs = (torch.split(torch.from_numpy(array), self._rows) for array in (rows, labels))
        with torch.inference_mode():
            parts = [self._decoder.logprobs(*pair).numpy() for pair in zip(*pairs, strict=True)]
        return np.concatenate(parts)


class TorchEncoderHeads(TorchHeads, Decomposition):
    """Heads and decomposition of an encoder, whose segments may have adapters."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._merged: tuple[int, TorchEncoderHeads] = 0, self
        with torch.inference_mode():
            own = encoder.head_parameters(), encoder.value_parameters()
        super().__init__(encoder.rule, encoder.config.num_attention_heads, *own)

    def of_segment(self, segment: int) -> TorchEncoderHeads:
        """Return the heads of the layers of a segment; only the last merged ones are kept."""
        if not segment:
            return self
        number, merged = self._merged
        if number != segment:
            merged = TorchEncoderHeads(with_merged_layers(self._encoder, segment))
            self._merged = segment, merged
        return merged

    def decompose(self, step: DecompositionStep) -> DecomposedRows:
        """Return the rows after their layer, and values for the next one."""
        own = self.of_segment(step.segment)._parts
        with torch.inference_mode():
            parts = torch.from_numpy(step.parts)
            if step.states is not None and step.values is not None:
                rows = torch.arange(step.first_row, step.first_row + len(parts))
                states, of_all = map(torch.from_numpy, (step.states, step.values))
                parts = own.through(parts, step.layer, rows, states, of_all)
            if step.layer + 1 == self._encoder.config.num_hidden_layers:
                return DecomposedRows(parts.numpy(), None)
            values = own.values(parts, step.layer + 1)
            return DecomposedRows(parts.numpy(), values.contiguous().numpy())

    @functools.cached_property
    def _parts(self) -> EncoderDecomposition:
        with torch.inference_mode():
            return EncoderDecomposition(self._encoder)


class PyTorchRuntime(HostRuntime):
    """Modules in float32; see `Runtime`."""

    provider = "torch-cpu"

    def __init__(
        self, encoder: Encoder, head: TaskModule | None = None, decoder: Decoder | None = None
    ) -> None:
        self.config = encoder.config
        self._encoder = encoder
        self.parts = [TorchEncoderHeads(encoder)]
        if decoder:
            self.parts.append(TorchDecoder(decoder))
        if head:
            self.parts.append(TaskHead(head.config, functools.partial(scores_of, head)))
        with torch.inference_mode():
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
