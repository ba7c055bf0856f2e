"""All between scheduler and engine; T query, S key tokens of a text, H size, L layers, N heads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from model.artifact.pooling import PoolingModes

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]
Task: TypeAlias = "TextTask | MapsTask"


@dataclass(frozen=True, slots=True)
class Pooling:
    """Which hidden state is pooled, and how."""

    layer: int
    mode: PoolingModes
    first_token: int = 0  # those before it are left out (a prompt that does not count)


@dataclass(frozen=True, slots=True)
class TextTask:
    """One text, `[S]` ids and segments with S ≥ 1, and what is asked of it; layers 0 … L."""

    input_ids: Ids
    segment_ids: Ids
    hidden_layers: tuple[int, ...] = ()
    pooling: Pooling | None = None
    ablated: tuple[tuple[int, int], ...] = ()  # (layer, head) of heads whose output is zeroed
    scores: tuple[int, ...] = ()  # axes of what a task head answers, or of a foreign graph's maps
    unseen: int = 0  # tokens at its end that no token attends to

    @property
    def tokens(self) -> int:
        """S."""
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class MapsTask:
    """Attention weights of at least one head of a layer; self-attention has one array for both."""

    queries: Floats  # [T, H], the query states that enter the layer
    keys: Floats  # [S, H], its key states
    layer: int
    heads: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.queries)


@dataclass(slots=True)
class Output:
    """What was asked for, in that order."""

    hidden: list[Floats] = field(default_factory=list)  # [S, H] each
    pooled: Floats | None = None  # [H] a mode, not normalised
    maps: Floats | None = None  # [heads, T, S], over keys
    scores: Floats | None = None  # of a foreign graph [L, N, S, S]


class Engine(ABC):
    """Computes batches. `run` may be called from `concurrency` threads at once."""

    name: str
    provider: str  # what really computes, as the runtime reports it
    concurrency: int
    spare_calls: int = 0  # calls on top of these, for short batches while all others are long
    hidden_size: int  # H
    batch_tokens: int = 512  # most of a batch, unless an operator knows better

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
