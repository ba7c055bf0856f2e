"""All between scheduler and engine.

Notation: S tokens or keys, T tokens of a target or queries, H size, L and L_d layers, N heads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from model.artifact.decomposition import DecomposedRows, DecompositionStep
from model.artifact.layer_parts import LayerParts, LayerStep
from model.artifact.pooling import PoolingModes
from model.artifact.signature import MapKind
from model.runtimes.contract import HeadScores

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]
Task: TypeAlias = "TextTask | MapsTask | DecomposeTask | LayerTask"
Ablated: TypeAlias = tuple[tuple[int, int], ...]  # (layer, head) of heads whose output is zeroed


@dataclass(frozen=True, slots=True)
class Pooling:
    """Which hidden state is pooled, and how."""

    layer: int
    mode: PoolingModes
    first_token: int = 0  # those before it are left out (a prompt that does not count)
    left_out: tuple[int, ...] = ()  # further tokens that are; not all that would count


@dataclass(frozen=True, slots=True)
class Target:
    """Labels `[T]`, T ≥ 1, that a decoder reads shifted right over a text's last hidden state."""

    labels: Ids
    hidden_layers: tuple[int, ...] = ()  # 0 … L_d
    cross_layers: tuple[int, ...] = ()  # 0 … L_d−1, whose cross-attention's query states
    logprobs: bool = False  # log-probability of each label after those before it
    ablated: Ablated = ()  # of the decoder's self-attention
    cross_ablated: Ablated = ()  # of its cross-attention


@dataclass(frozen=True, slots=True)
class TextTask:
    """One text, `[S]` ids and segments with S ≥ 1, and what is asked of it; layers 0 … L."""

    input_ids: Ids
    segment_ids: Ids
    hidden_layers: tuple[int, ...] = ()
    pooling: Pooling | None = None
    ablated: Ablated = ()
    scores: tuple[int, ...] = ()  # axes of what a task head answers, or of a foreign graph's maps
    unseen: tuple[int, ...] = ()  # numbers of tokens that no token attends to; not all
    target: Target | None = None  # of an encoder–decoder

    @property
    def tokens(self) -> int:
        """S + T."""
        return len(self.input_ids) + (len(self.target.labels) if self.target else 0)


@dataclass(frozen=True, slots=True)
class MapsTask:
    """Attention weights of at least one head of a layer; self-attention has one array for both."""

    queries: Floats  # [T, H], the query states that enter the layer, or `TargetOutput.cross`
    keys: Floats  # [S, H], its key states; of cross-attention the encoder's last
    layer: int
    heads: tuple[int, ...]
    kind: MapKind = "encoder"
    values: bool = False  # whether the products of the heads' values are wanted as well
    scores: bool = False  # whether queries, keys and scores are, of heads of the encoder

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.queries)


@dataclass(frozen=True, slots=True)
class DecomposeTask:
    """Shares of input tokens in some states of one text, through one layer."""

    step: DecompositionStep
    tokens: int  # that take as long to encode
    last: bool = False  # no layer follows, so that no values are wanted


@dataclass(frozen=True, slots=True)
class LayerTask:
    """One layer of one text, recomputed from the hidden state that enters it."""

    step: LayerStep
    tokens: int  # that take as long to encode


@dataclass(slots=True)
class TargetOutput:
    """What was asked of a target, in that order."""

    hidden: list[Floats] = field(default_factory=list)  # [T, H] each
    cross: list[Floats] = field(default_factory=list)  # [T, H] query states each
    logprobs: Floats | None = None  # [T]


@dataclass(slots=True)
class Output:
    """What was asked for, in that order."""

    hidden: list[Floats] = field(default_factory=list)  # [S, H] each
    pooled: Floats | None = None  # [H] a mode, not normalised
    maps: Floats | None = None  # [heads, T, S], over keys
    value_products: Floats | None = None  # [S, heads, heads], see `Runtime.value_products`
    head_scores: HeadScores | None = None
    scores: Floats | None = None  # of a foreign graph [L, N, S, S]
    target: TargetOutput | None = None
    decomposed: DecomposedRows | None = None
    parts: LayerParts | None = None


class Engine(ABC):
    """Computes batches. `run` may be called from `concurrency` threads at once."""

    name: str
    provider: str  # what really computes, as the runtime reports it
    concurrency: int
    spare_calls: int = 0  # calls on top of these, for short batches while all others are long
    hidden_size: int  # H
    batch_tokens: int = 512  # most of a batch, unless an operator knows better
    measured: Sequence[tuple[int, float]] = ()  # tokens and seconds of texts, for first forecasts
    measured_maps: Sequence[tuple[int, float]] = ()  # the same of maps; as texts when empty

    @property
    def alive(self) -> bool:
        """False once the engine can never answer again."""
        return True

    @abstractmethod
    def run(self, tasks: Sequence[Task]) -> list[Output]:
        """One output a task, in order; at least one task, of any lengths, selections and kinds.

        Raises:
            ServiceError: the batch failed; the message holds nothing of the texts.

        """

    def warm_up(self, batch_tokens: int, longest: int) -> None:  # noqa: B027
        """Do what is slow the first time: batches of so many tokens, texts of at most `longest`."""

    def close(self) -> None:  # noqa: B027
        """Release what the engine holds; it is not used afterwards."""
