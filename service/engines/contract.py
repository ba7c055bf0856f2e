"""Contract between the scheduler and engines.

Notation: S tokens or keys, T tokens of a target or queries, H size, L and L_d layers, N heads,
F features of a patch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from model.artifact.decomposition import DecomposedRows, DecompositionStep
from model.artifact.signature import MapKind
from model.numerics.pooling import PoolingModes
from model.runtimes.contract import HeadScores, HiddenState

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]
Array: TypeAlias = HiddenState  # an output's array, perhaps on a device
Task: TypeAlias = "TextTask | MapsTask | DecomposeTask"
Ablated: TypeAlias = tuple[tuple[int, int], ...]  # (layer, head) of heads whose output is zeroed


@dataclass(frozen=True, slots=True)
class Pooling:
    """Hidden state to pool, and the mode of pooling."""

    layer: int
    mode: PoolingModes
    first_token: int = 0  # tokens before it are not pooled (a prompt without weight)
    left_out: tuple[int, ...] = ()  # further tokens that are not pooled; at least one remains


@dataclass(frozen=True, slots=True)
class Target:
    """Labels `[T]`, T ≥ 1, that a decoder reads shifted right over a text's last hidden state."""

    labels: Ids
    hidden_layers: tuple[int, ...] = ()  # requested hidden states, 0 … L_d
    cross_layers: tuple[int, ...] = ()  # requested query states of cross-attention, 0 … L_d−1
    logprobs: bool = False  # whether to compute each label's log-probability, given those before
    ablated: Ablated = ()  # heads of the decoder's self-attention
    cross_ablated: Ablated = ()  # heads of its cross-attention


@dataclass(slots=True, eq=False)
class TextTask:
    """A text, `[S]` ids and segments with S ≥ 1, and its requested outputs; layers 0 … L."""

    input_ids: Ids
    segment_ids: Ids
    hidden_layers: tuple[int, ...] = ()
    pooling: Pooling | None = None
    ablated: Ablated = ()
    scores: tuple[int, ...] = ()  # shape of a task head's scores
    unseen: tuple[int, ...] = ()  # indices of tokens masked as keys; at least one remains
    target: Target | None = None  # labels, if the model is an encoder–decoder
    pixels: Floats | None = None  # [S, F] of a picture's patches, zeros for its special tokens
    map_layers: tuple[int, ...] = ()  # layers whose inputs are requested for maps

    @property
    def tokens(self) -> int:
        """S + T."""
        return len(self.input_ids) + (len(self.target.labels) if self.target else 0)


@dataclass(frozen=True, slots=True)
class MapsTask:
    """Attention weights of some heads; in self-attention `queries` and `keys` are one array."""

    queries: HiddenState  # [T, H]: state that enters the layer, or `TargetOutput.cross`
    keys: HiddenState  # [S, H]: the same; in cross-attention the encoder's last hidden state
    layer: int
    heads: tuple[int, ...]  # at least one
    kind: MapKind = "encoder"
    values: bool = False  # whether to compute the products of the heads' values as well
    scores: bool = False  # whether to compute queries, keys and scores as well; encoder only
    segment: int = 0  # token type of the text's first token

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.queries)


@dataclass(frozen=True, slots=True)
class DecomposeTask:
    """Decomposition of some states of one text through one layer."""

    step: DecompositionStep
    tokens: int  # estimated cost, in tokens to encode
    last: bool = False  # whether it is the last layer, after which no values are needed


@dataclass(slots=True)
class TargetOutput:
    """Requested outputs of a target, in the order of the request."""

    hidden: list[Floats] = field(default_factory=list)  # [T, H] each
    cross: list[Floats] = field(default_factory=list)  # [T, H] query states each
    logprobs: Floats | None = None  # [T]


@dataclass(slots=True)
class Output:
    """Requested outputs of a task, in the order of the request."""

    hidden: list[Floats] = field(default_factory=list)  # [S, H] each
    pooled: Floats | None = None  # [H] per mode, not normalised
    maps: Floats | None = None  # [heads, T, S], over keys
    value_products: Floats | None = None  # [S, heads, heads], see `Heads`
    head_scores: HeadScores | None = None
    scores: Floats | None = None  # scores of a task head
    target: TargetOutput | None = None
    decomposed: DecomposedRows | None = None
    map_states: list[HiddenState] = field(default_factory=list)  # [S, H] each, perhaps on a device


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Cost of a batch of texts, in any unit of time; the defaults are in the time of a token.

    The padding of a batch is the positions without a token of a grid `[B, S]` of B texts, of which
    the longest has S tokens.
    """

    fixed: float = 32.0  # > 0, whatever the batch holds
    token: float = 1.0
    padding: float = 0.2  # per position

    def of(self, tokens: int, padding: int) -> float:
        """Return the cost of a batch by its tokens and its positions of padding."""
        return self.fixed + self.token * tokens + self.padding * padding


@dataclass(frozen=True, slots=True)
class DeviceState:
    """State of one of an engine's several devices."""

    id: int
    state: Literal["serving", "lost"]
    queued_tokens: int  # of the batches in flight


class Engine(ABC):
    """Base of engines, which compute batches."""

    name: str
    provider: str  # hardware interface that computes, as the runtime reports it
    concurrency: int  # number of threads that may call `run` at once
    spare_calls: int = 0  # further calls of short batches while all others are long
    hidden_size: int  # H
    attention_kernels: Sequence[str] = ()  # kernels that ONNX Runtime selected on a GPU
    batch_tokens: int = 512  # default maximum tokens of a batch
    measured: Sequence[tuple[int, float]] = ()  # tokens and seconds of text batches, for forecasts
    cost: BatchCost = BatchCost()  # measured, by which texts are grouped into batches
    measured_maps: Sequence[tuple[int, float]] = ()  # the same for maps; `measured` if empty

    @property
    def alive(self) -> bool:
        """Whether the engine can still compute; once False, it stays False."""
        return True

    @property
    def devices(self) -> Sequence[DeviceState]:
        """States of several devices; empty for an engine on one."""
        return ()

    @abstractmethod
    def run(self, tasks: Sequence[Task]) -> list[Output]:
        """Return the outputs of at least one task, in order; tasks may be of any kind and length.

        Raises:
            ServiceError: the batch failed; the message has no part of the texts.

        """

    def warm_up(self, batch_tokens: int, longest: int) -> None:  # noqa: B027
        """Run slow first batches in advance: `batch_tokens` tokens, texts of at most `longest`."""

    def release_memory(self) -> None:  # noqa: B027
        """Return memory that is kept between batches, and free now, to the system."""

    def close(self) -> None:  # noqa: B027
        """Release the engine's resources; it cannot be used afterwards."""
