"""Contract of every runtime: the computation of an encoder, from arrays to arrays.

Notation: B texts, T tokens of all texts, S tokens of one text, H hidden size, L layers, N heads,
L_d and N_d of a decoder. In `attention`, T and S are the numbers of query and key states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from model.artifact.decomposition import DecomposedRows, DecompositionStep
from model.artifact.layer_parts import LayerParts, LayerStep
from model.artifact.signature import MapKind
from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.numerics.batch import Batch, Ids
from model.numerics.pooling import TextPooling
from model.numerics.task_head import TaskConfig

Floats = NDArray[np.float32]
Device = Literal["auto", "cpu", "cuda"]
NO_TASK_HEAD = (
    "the artifact has no task head to score with: export a checkpoint that has one, such as a "
    "…ForSequenceClassification"
)
NO_DECODER = (
    "the artifact has no decoder: export a checkpoint that has one, such as a MarianMTModel"
)
LOGITS = 2**23
"""Maximum number of logits in memory at a time: 32 MiB, and another 32 MiB for logarithms."""
NO_OWN_MAPS = "attention weights of this artifact are recomputed, a layer at a time"


@dataclass(frozen=True)
class Resources:
    """Device, threads and memory of a runtime."""

    device: Device = "cpu"
    """Device to use; "auto" selects CUDA if there is a CUDA device."""
    threads: int = 1
    """Number of concurrent calls."""
    device_id: int = 0
    """Index of the CUDA device."""
    device_memory_bytes: int | None = None
    """Memory limit of each of the three graphs on a CUDA device."""


@dataclass(frozen=True)
class Decoding:
    """Targets of texts, and the requested outputs of the decoder."""

    source: Batch
    """Batch of the B texts."""
    encoded: Floats
    """`[S_all, H]`, last hidden states of the texts."""
    target: Batch
    """Batch of one target per text: its labels, shifted right."""
    states: Sequence[tuple[int, int]] = ()
    """(text, layer) of each requested decoder state, layers 0 … L_d."""
    cross: Sequence[tuple[int, int]] = ()
    """(text, layer) of each requested query state of cross-attention, layers 0 … L_d−1."""
    head_mask: Floats | None = None
    """`[B, L_d, N_d]`, multiplies the output of each head of self-attention; all 1 when None."""
    cross_head_mask: Floats | None = None
    """`[B, L_d, N_d]`, likewise for cross-attention."""


@dataclass(frozen=True)
class HeadScores:
    """Queries, keys and scores of n heads of a layer for one text, in float32."""

    queries: Floats
    """`[n, S, p]`, queries as they enter the score: with bias, norm and rotary positions."""
    keys: Floats
    """`[n, S, p]`, keys as they enter the score; with the bilinear score their size may differ."""
    scores: Floats
    """`[n, S, S]`, scores before masking and normalisation, with relative positions' terms."""


class Runtime(Protocol):
    """Computation of an encoder. All calls are thread-safe."""

    config: EncoderConfig
    provider: str
    """Hardware that computes, as the runtime reports it."""
    spare_calls: int
    """Number of useful concurrent calls beyond the number of threads; they share the cores."""
    task: TaskConfig | None
    """Config of the task head; None without one."""
    decoder: DecoderConfig | None
    """Config of the decoder over the encoder's last hidden state; None without one."""
    own_maps: bool
    """Whether maps are outputs of a foreign graph, by `maps`, instead of recomputed, by
    `attention`."""

    @property
    def alive(self) -> bool:
        """Whether the device still works; False once it is lost for good."""

    def encode(
        self,
        batch: Batch,
        hidden: Sequence[tuple[int, int]],
        poolings: Sequence[TextPooling],
        head_mask: Floats | None = None,
    ) -> tuple[list[Floats], list[Floats]]:
        """Return hidden states and pooled vectors of one forward pass; only these leave the device.

        Args:
            batch: the packed batch.
            hidden: (text, layer) of each requested hidden state, layers 0 … L.
            poolings: the requested vectors; `hidden` or `poolings` is not empty.
            head_mask: as for `hidden_states`.

        Returns:
            `[S, H]` per hidden state, `[H]` per pooling, `[n · H]` with n modes; as requested.

        Raises:
            DeviceLostError: the device failed for good, now or earlier.

        """

    def warm_up(self, batch_tokens: int, longest: int, /) -> None:
        """Run batches that are slow, or allocate memory, the first time.

        Args:
            batch_tokens: maximum tokens of a batch.
            longest: maximum tokens of a text.

        """

    def release_memory(self) -> None:
        """Return memory that is kept between calls, and free now, to the system."""

    def hidden_states(
        self, batch: Batch, layers: Sequence[int], head_mask: Floats | None = None
    ) -> list[Floats]:
        """Return hidden states of a packed batch.

        Args:
            batch: the packed batch.
            layers: requested layers, 0 … L; at least one.
            head_mask: `[B, L, N]`, multiplies each head's output; 0 ablates it. All 1 when None.

        Returns:
            `[T, H]` per requested layer, in that order.

        Raises:
            DeviceLostError: the device failed for good, now or earlier.

        """

    def attention(
        self,
        queries: Floats,
        keys: Floats,
        layer: int,
        heads: Sequence[int],
        kind: MapKind = "encoder",
    ) -> Floats:
        """Return attention weights of some heads of one layer, recomputed from the layer's inputs.

        Args:
            queries: query states of one text, `[T, H]`.
            keys: key states, `[S, H]`; in self-attention the same array, hidden state `layer`; in
                cross-attention the encoder's last hidden state.
            layer: 0 … L−1.
            heads: requested heads of 0 … N−1; at least one.
            kind: kind of the heads.

        Returns:
            `[heads, T, S]`, over keys; each row sums to 1.

        Raises:
            DeviceLostError: the device failed for good, now or earlier.
            ModelError: a decoder's heads are requested, but there is no decoder.

        """

    def decode(self, asked: Decoding) -> tuple[list[Floats], list[Floats]]:
        """Return decoder states and cross-attention's query states of one pass over all targets.

        Returns:
            `[T, H]` per state, and `[T, H]` per layer's query states, in the order requested.

        Raises:
            DeviceLostError: the device failed for good, now or earlier.
            ModelError: there is no decoder.

        """

    def logprobs(self, rows: Floats, labels: Ids) -> Floats:
        """Return the log-probability of each label, given all labels before it.

        Args:
            rows: rows of the decoder's last hidden state, `[n, H]`.
            labels: `[n]`, one per row.

        Returns:
            `[n]`.

        Raises:
            DeviceLostError: the device failed for good, now or earlier.
            ModelError: there is no decoder.

        """

    def score(self, rows: Floats) -> Floats:
        """Return the outputs of the task head; see `model.numerics.task_head`.

        Args:
            rows: `[n, H]`, one per text or per token; for sparse vectors, the tokens of one text.

        Returns:
            `[n, C]`, or `[1, V]` for sparse vectors.

        Raises:
            DeviceLostError: the device failed for good, now or earlier.
            ModelError: there is no task head.

        """

    def value_products(
        self, states: Floats, layer: int, heads: Sequence[int], kind: MapKind = "encoder"
    ) -> Floats:
        """Return inner products of the vectors that any two heads of a layer add for each token.

        The host computes them by the float32 weights, for every precision and device: see
        `model.attention.values`.

        Args:
            states: key states of one text, `[S, H]`, as `attention` takes them.
            layer: 0 … L−1.
            heads: requested heads of 0 … N−1; at least one.
            kind: kind of the heads; for both kinds of a decoder, L and N are the decoder's.

        Returns:
            `[S, heads, heads]`.

        Raises:
            ModelError: the graph is foreign, or there are no such heads.

        """

    def head_scores(self, states: Floats, layer: int, heads: Sequence[int]) -> HeadScores:
        """Return queries, keys and scores of heads of the encoder.

        The host computes them by the float32 weights, for every precision and device: see
        `model.attention.weights`.

        Args:
            states: hidden state `layer` of one text, `[S, H]`.
            layer: 0 … L−1.
            heads: requested heads of 0 … N−1; at least one.

        Raises:
            ModelError: the graph is foreign.

        """

    def decompose(self, step: DecompositionStep) -> DecomposedRows:
        """Propagate input tokens' shares in states of one text through one layer, in float32.

        The host computes them by the float32 weights, for every precision and device.

        Raises:
            ArtifactError: the artifact is serving-only.
            ModelError: the graph is foreign.

        """

    def layer_parts(self, step: LayerStep) -> LayerParts:
        """Return the parts of a layer, computed like `decompose` and with the same errors."""

    def maps(self, batch: Batch) -> Floats:
        """Return all attention weights of one text, if they are outputs of the graph itself.

        Args:
            batch: batch of one text.

        Returns:
            `[L, N, S, S]`, over keys; each row sums to 1.

        Raises:
            ModelError: `own_maps` is False.

        """


def every_head(batch: Batch, config: EncoderConfig) -> Floats:
    """Return a head mask `[B, L, N]` of ones."""
    texts = len(batch.padded_index)
    return np.ones((texts, config.num_hidden_layers, config.num_attention_heads), np.float32)


def layers_of(hidden: Sequence[tuple[int, int]], poolings: Sequence[TextPooling]) -> list[int]:
    """Return the layers of the hidden states and poolings, ascending."""
    return sorted({layer for _, layer in hidden} | {pooling.layer for pooling in poolings})
