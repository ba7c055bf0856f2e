"""Contract of every runtime: the computation of an encoder, from arrays to arrays.

Further capabilities that an artifact may have are in `model.runtimes.capabilities`.

Notation: B texts, T tokens of all texts, S tokens of one text, H hidden size, L layers, N heads,
L_d and N_d of a decoder.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from model.artifact.signature import HeadGraph
from model.config.encoder import EncoderConfig
from model.numerics.batch import Batch, dummies
from model.numerics.pooling import Pool, TextPooling, l2_normalize, pool

Floats = NDArray[np.float32]
Device = Literal["auto", "cpu", "cuda"]
LOGITS = 2**23
"""Maximum number of logits in memory at a time: 32 MiB, and another 32 MiB for logarithms."""


LONE_TOKENS = 128
"""Maximum tokens of a batch that all cores compute together if no other call is in flight."""
FLOATS = 2**21
"""Maximum number of features of the heads' added vectors in memory at one time: 8 MiB."""


Array: TypeAlias = NDArray[np.generic]
Outputs: TypeAlias = list[NDArray[Any]]
"""Outputs of a graph, of types that ONNX Runtime does not declare."""


class Session(Protocol):
    """Loaded graph."""

    def run(self, names: Sequence[str], feed: Mapping[str, Array], /) -> Outputs:
        """Return the outputs with these names."""

    def get_providers(self) -> list[str]:
        """Return the hardware interfaces that compute."""


class HiddenState(Protocol):
    """Hidden state `[S, H]` of a text: an array, or on a device, from which `asarray` copies it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """S and H."""

    def __len__(self) -> int:
        """Return S."""

    def __array__(self) -> Floats:
        """Return the state on the host."""


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
    cuda_graphs: bool = False
    """Whether small batches of vectors are computed by CUDA graphs."""


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


class Heads(ABC):
    """Heads of one kind: their maps, the vectors that they add, and what they compare.

    All are recomputed from the states that enter the heads' layer. An encoder that has them can
    also ablate heads.
    """

    def attention(
        self,
        queries: HiddenState,
        keys: HiddenState,
        layer: int,
        heads: Sequence[int],
        segment: int = 0,
    ) -> Floats:
        """Return attention weights of some heads of one layer.

        Query states `[T, H]` and key states `[S, H]` of one text, both hidden state `layer`, 0 …
        L−1 → `[heads, T, S]`, over keys; each row sums to 1. In cross-attention the keys are the
        encoder's last hidden state. `segment` is the token type of the text's first token.
        """
        states = [np.asarray(state)[None] for state in (queries, keys)]
        maps: Floats = self.run("attention", states, layer, heads, segment)[0][0]
        return maps

    def value_products(
        self, states: Floats, layer: int, heads: Sequence[int], segment: int = 0
    ) -> Floats:
        """Return inner products of the vectors that any two heads of a layer add for each token.

        The host computes them by the float32 weights, for every precision and device: see
        `model.attention.weights`. Key states `[S, H]`, as `attention` takes them → `[S, heads,
        heads]`, in blocks of tokens.
        """
        step = max(1, FLOATS // (len(heads) * states.shape[1]))
        parts = [
            self.run("value_norms", [states[first : first + step]], layer, heads, segment)[0]
            for first in range(0, max(1, len(states)), step)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def head_scores(
        self, states: Floats, layer: int, heads: Sequence[int], segment: int = 0
    ) -> HeadScores:
        """Return queries, keys and scores of heads of the encoder; a decoder's heads lack them.

        The host computes them by the float32 weights, for every precision and device: see
        `model.attention.weights`. `states` is hidden state `layer` of one text, `[S, H]`.
        """
        return HeadScores(*self.run("head_scores", [states], layer, heads, segment))

    @abstractmethod
    def run(
        self,
        graph: HeadGraph,
        states: Sequence[Floats],
        layer: int,
        heads: Sequence[int],
        segment: int,
    ) -> Sequence[Floats]:
        """Return all outputs of a graph of heads for these states, as its signature describes."""


class Runtime(ABC):
    """Encoder of an artifact. All calls, also of its parts, are thread-safe.

    Every call raises `DeviceLostError` if the device failed for good, now or earlier.
    """

    config: EncoderConfig
    provider: str
    """Hardware that computes, as the runtime reports it."""
    parts: Sequence[object] = ()
    """Objects that implement further capabilities of the artifact."""
    pool: Pool = staticmethod(pool)
    """Pooling of hidden states on the host; an artifact's own, if it has parameters."""
    spare_calls = 0
    """Number of useful concurrent calls beyond the number of threads; they share the cores."""
    attention_kernels: Sequence[str] = ()
    """Names of the attention kernels that were selected on a GPU; empty if they are not known."""

    @property
    def alive(self) -> bool:
        """Whether the device still works; False once it is lost for good."""
        return True

    @abstractmethod
    def encode(
        self,
        batch: Batch,
        hidden: Sequence[tuple[int, int]],
        poolings: Sequence[TextPooling],
        head_mask: Floats | None = None,
    ) -> tuple[Sequence[HiddenState], list[Floats]]:
        """Return hidden states and pooled vectors of one forward pass.

        `hidden` are (text, layer) of each requested hidden state, layers 0 … L; it or `poolings` is
        not empty. The results are `[S, H]` per hidden state, `[H]` per pooling, `[n · H]` with n
        modes; as requested. `head_mask` is as for `hidden_states`.
        """

    def pooled(self, rows: Sequence[Floats], poolings: Sequence[TextPooling]) -> list[Floats]:
        """Return the vector of each pooling, given its text's hidden state `[S, H]` on the host."""
        vectors = []
        for own, pooling in zip(rows, poolings, strict=True):
            vector = self.pool(own, pooling.mode, pooling.first_token, pooling.left_out)
            n = pooling.unit_features
            if n:
                vector[:n] = l2_normalize(vector[:n])
            vectors.append(vector)
        return vectors

    def release_memory(self) -> None:  # noqa: B027
        """Return memory that is kept between calls, and free now, to the system."""

    @abstractmethod
    def hidden_states(
        self, batch: Batch, layers: Sequence[int], head_mask: Floats | None = None
    ) -> list[Floats]:
        """Return hidden states of a packed batch.

        They are `[T, H]` per requested layer 0 … L, in that order; at least one. `head_mask` `[B,
        L, N]` multiplies each head's output; 0 ablates it. All 1 when None.
        """

    @abstractmethod
    def warm_up(self, batch_tokens: int, longest: int, /) -> None:
        """Run batches that are slow, or allocate memory, the first time.

        `batch_tokens` and `longest` are the maximum tokens of a batch and of a text.
        """


class HostRuntime(Runtime):
    """Runtime whose whole hidden states come to the host, where they are split and pooled.

    On a CPU each call runs on its caller's thread, which gives the highest throughput.
    """

    def encode(
        self,
        batch: Batch,
        hidden: Sequence[tuple[int, int]],
        poolings: Sequence[TextPooling],
        head_mask: Floats | None = None,
    ) -> tuple[list[Floats], list[Floats]]:
        """Return `[S, H]` per hidden state, a view, and `[H]` per pooling and mode."""
        asked = [(pooling.text, pooling.layer) for pooling in poolings]
        layers = sorted({layer for _, layer in (*hidden, *asked)})
        states = dict(zip(layers, self.hidden_states(batch, layers, head_mask), strict=True))
        return cut(states, batch, hidden), self.pooled(cut(states, batch, asked), poolings)

    def warm_up(self, *_: int) -> None:
        """Run one short batch, because a large one would keep its memory."""
        batch = dummies([1], self.config.pixel_features)
        self.hidden_states(batch, [self.config.num_hidden_layers])


def cut(rows: Mapping[int, Floats], batch: Batch, asked: Sequence[tuple[int, int]]) -> list[Floats]:
    """Return the rows of single texts, as views.

    `rows` are hidden states `[T, H]` of the batch by layer, `asked` (text, layer) of each requested
    one.
    """
    ends = batch.cu_seqlens.tolist()
    return [rows[layer][ends[text] : ends[text + 1]] for text, layer in asked]


class Calls:
    """Counter of calls in flight."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_flight = 0

    @contextlib.contextmanager
    def call(self, batch: Batch) -> Iterator[bool]:
        """Count a call for the context; yield whether its batch is short and no other call runs."""
        with self._lock:
            self._in_flight += 1
            alone = self._in_flight == 1 and len(batch.input_ids) <= LONE_TOKENS
        try:
            yield alone
        finally:
            with self._lock:
                self._in_flight -= 1


def every_head(batch: Batch, config: EncoderConfig) -> Floats:
    """Return a head mask `[B, L, N]` of ones."""
    texts = len(batch.padded_index)
    return np.ones((texts, config.num_hidden_layers, config.num_attention_heads), np.float32)
