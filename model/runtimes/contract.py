"""The contract of every runtime: what computes an encoder, from arrays to arrays.

Notation: B texts, T tokens of all of them, S tokens of one, H hidden size, L layers, N heads, L_d
and N_d of a decoder. In `attention`, T and S are the numbers of query and key states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from model.artifact.batch import Batch, Ids
from model.artifact.decomposition import DecomposedRows, DecompositionStep
from model.artifact.layer_parts import LayerParts, LayerStep
from model.artifact.pooling import TextPooling
from model.artifact.signature import MapKind
from model.artifact.task import TaskConfig
from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig

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
"""Most logits that exist at a time: 32 MiB, and as much again for their logarithms."""
NO_OWN_MAPS = "attention weights of this artifact are recomputed, a layer at a time"


@dataclass(frozen=True)
class Resources:
    """Device, threads and memory of a runtime."""

    device: Device = "cpu"
    """"auto" takes CUDA where there is a device."""
    threads: int = 1
    """Number of concurrent calls."""
    device_id: int = 0
    """Number of the CUDA device."""
    device_memory_bytes: int | None = None
    """Bound on the memory of each of the three graphs on a CUDA device."""


@dataclass(frozen=True)
class Decoding:
    """Targets of texts, and what is asked of the decoder."""

    source: Batch
    """The B texts."""
    encoded: Floats
    """Their last hidden states, `[S_all, H]`."""
    target: Batch
    """Their targets' labels, shifted right; a target a text."""
    states: Sequence[tuple[int, int]] = ()
    """(text, layer) of each decoder state, layers 0 … L_d."""
    cross: Sequence[tuple[int, int]] = ()
    """(text, layer) of each layer's query states of cross-attention, layers 0 … L_d−1."""
    head_mask: Floats | None = None
    """`[B, L_d, N_d]`, multiplies the output of each head of self-attention; all 1 when None."""
    cross_head_mask: Floats | None = None
    """Likewise of cross-attention."""


@dataclass(frozen=True)
class HeadScores:
    """What n heads of a layer compare in one text, in float32."""

    queries: Floats
    """`[n, S, p]`, as they enter the score: with their bias, norm and rotary positions."""
    keys: Floats
    """`[n, S, p]`, likewise; of the bilinear score they may have another size."""
    scores: Floats
    """`[n, S, S]`: what is normalised over keys, with what relative positions add; no mask yet."""


class Runtime(Protocol):
    """An encoder, however it is computed. Calls are safe from several threads at once."""

    config: EncoderConfig
    provider: str
    """The hardware that computes, as the runtime reports it."""
    spare_calls: int
    """Calls that may go beside as many as there are threads, which then share the cores."""
    task: TaskConfig | None
    """The task head; None without."""
    decoder: DecoderConfig | None
    """The decoder over the encoder's last hidden state; None without."""
    own_maps: bool
    """Whether maps come from the graph itself, a foreign one, by `maps`, and not by `attention`."""

    @property
    def alive(self) -> bool:
        """False once the device is lost for good."""

    def encode(
        self,
        batch: Batch,
        hidden: Sequence[tuple[int, int]],
        poolings: Sequence[TextPooling],
        head_mask: Floats | None = None,
    ) -> tuple[list[Floats], list[Floats]]:
        """Hidden states and pooled vectors of one forward pass; only these leave the device.

        Args:
            batch: the packed batch.
            hidden: (text, layer) of each hidden state asked for, layers 0 … L.
            poolings: the vectors asked for; something is asked for.
            head_mask: as for `hidden_states`.

        Returns:
            A `[S, H]` each hidden state and a `[H]` each pooling, `[n · H]` for one of n modes, in
            the order asked.

        Raises:
            DeviceLostError: now or before, the device failed for good.

        """

    def warm_up(self, batch_tokens: int, longest: int, /) -> None:
        """Batches that are slow, or take memory, the first time.

        Args:
            batch_tokens: the most tokens of a batch.
            longest: the most tokens of a text.

        """

    def hidden_states(
        self, batch: Batch, layers: Sequence[int], head_mask: Floats | None = None
    ) -> list[Floats]:
        """Hidden states of a packed batch.

        Args:
            batch: the packed batch.
            layers: which, 0 … L; at least one.
            head_mask: `[B, L, N]`, multiplies each head's output; 0 ablates it. All 1 when None.

        Returns:
            One `[T, H]` a layer asked for, in that order.

        Raises:
            DeviceLostError: now or before, the device failed for good.

        """

    def attention(
        self,
        queries: Floats,
        keys: Floats,
        layer: int,
        heads: Sequence[int],
        kind: MapKind = "encoder",
    ) -> Floats:
        """Attention weights of some heads of one layer, recomputed from the layer's inputs.

        Args:
            queries: query states of one text, `[T, H]`.
            keys: key states, `[S, H]`; in self-attention the same array, hidden state `layer`; in
                cross-attention the encoder's last.
            layer: 0 … L−1.
            heads: which of 0 … N−1; at least one.
            kind: whose heads.

        Returns:
            `[heads, T, S]`, over keys; each row sums to 1.

        Raises:
            DeviceLostError: now or before, the device failed for good.
            ModelError: there is no decoder, whose heads are asked for.

        """

    def decode(self, asked: Decoding) -> tuple[list[Floats], list[Floats]]:
        """Decoder states and cross-attention's query states of one forward pass over all targets.

        Returns:
            A `[T, H]` each state and a `[T, H]` each layer's query states, in the order asked.

        Raises:
            DeviceLostError: now or before, the device failed for good.
            ModelError: there is no decoder.

        """

    def logprobs(self, rows: Floats, labels: Ids) -> Floats:
        """Log-probabilities of labels, each after all before it.

        Args:
            rows: of the decoder's last state, `[n, H]`.
            labels: `[n]`, one a row.

        Returns:
            `[n]`.

        Raises:
            DeviceLostError: now or before, the device failed for good.
            ModelError: there is no decoder.

        """

    def score(self, rows: Floats) -> Floats:
        """The task head's answer, of an artifact that has one; see `model.artifact.scores`.

        Args:
            rows: `[n, H]`, one a text or one a token; of sparse vectors the tokens of one text.

        Returns:
            `[n, C]`, or `[1, V]` of sparse vectors.

        Raises:
            DeviceLostError: now or before, the device failed for good.
            ModelError: there is no task head.

        """

    def value_products(
        self, states: Floats, layer: int, heads: Sequence[int], kind: MapKind = "encoder"
    ) -> Floats:
        """Inner products of what any two heads of a layer add of each token.

        On the host, by the float32 weights, in every precision and on every device. See
        `model.attention.values`.

        Args:
            states: key states of one text, `[S, H]`, as `attention` takes them.
            layer: 0 … L−1.
            heads: which of 0 … N−1; at least one.
            kind: whose; of a decoder's both kinds, L and N are the decoder's.

        Returns:
            `[S, heads, heads]`.

        Raises:
            ModelError: the graph is a foreign one, or there is no such heads.

        """

    def head_scores(self, states: Floats, layer: int, heads: Sequence[int]) -> HeadScores:
        """Queries, keys and scores of heads of the encoder.

        On the host, by the float32 weights, in every precision and on every device. See
        `model.attention.weights`.

        Args:
            states: hidden state `layer` of one text, `[S, H]`.
            layer: 0 … L−1.
            heads: which of 0 … N−1; at least one.

        Raises:
            ModelError: the graph is a foreign one.

        """

    def decompose(self, step: DecompositionStep) -> DecomposedRows:
        """Shares of input tokens in some states of one text, through one layer, in float32.

        On the host, by the float32 weights, in every precision and on every device.

        Raises:
            ArtifactError: the artifact was copied without its weights.
            ModelError: the graph is a foreign one.

        """

    def layer_parts(self, step: LayerStep) -> LayerParts:
        """Return the parts of a layer, where and by which weights `decompose` does; raise as it."""

    def maps(self, batch: Batch) -> Floats:
        """All attention weights of one text, where they come from the graph itself.

        Args:
            batch: of one text.

        Returns:
            `[L, N, S, S]`, over keys; each row sums to 1.

        Raises:
            ModelError: `own_maps` is False, or the graph gives none.

        """


def every_head(batch: Batch, config: EncoderConfig) -> Floats:
    """Head mask `[B, L, N]` of ones."""
    texts = len(batch.padded_index)
    return np.ones((texts, config.num_hidden_layers, config.num_attention_heads), np.float32)


def layers_of(hidden: Sequence[tuple[int, int]], poolings: Sequence[TextPooling]) -> list[int]:
    """Layers of the hidden states and poolings, ascending."""
    return sorted({layer for _, layer in hidden} | {asked.layer for asked in poolings})
