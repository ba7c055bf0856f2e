"""The whole contract between the scheduler and an engine.

Notation: S tokens of one text, H hidden size, L layers, N heads; numbered from 0, none negative.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from model.pooling import PoolingName

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Pooling:
    """Which hidden state is pooled, and how."""

    layer: int
    mode: PoolingName
    first_token: int = 0
    """Tokens before this one are left out (a prompt that does not count)."""


@dataclass(frozen=True, slots=True)
class TextTask:
    """One text, `[S]` ids and segments with S ≥ 1, and what is asked of it."""

    input_ids: Ids
    segment_ids: Ids
    hidden_layers: tuple[int, ...] = ()
    """Hidden states asked for, each 0 … L."""
    pooling: Pooling | None = None
    ablated: tuple[tuple[int, int], ...] = ()
    """(layer, head) of each head whose output is multiplied by zero."""

    @property
    def tokens(self) -> int:  # noqa: D102
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class MapsTask:
    """A layer's attention weights for at least one head, from the state that enters the layer."""

    hidden: Floats
    """Hidden state `layer`, `[S, H]`."""
    layer: int
    heads: tuple[int, ...]

    @property
    def tokens(self) -> int:  # noqa: D102
        return len(self.hidden)


Task = TextTask | MapsTask


@dataclass(slots=True)
class Output:
    """What was asked for, in the order it was asked: `[S, H]` a hidden layer or `[heads, S, S]`."""

    hidden: list[Floats] = field(default_factory=list)
    pooled: Floats | None = None
    """`[H]`, not normalised."""
    maps: Floats | None = None
    """Over keys."""


class Engine(ABC):
    """Computes batches. `run` may be called from `concurrency` threads at once."""

    name: str
    provider: str
    """What really computes, as the runtime reports it."""
    concurrency: int
    """Calls of `run` that are worth making at the same time."""
    batch_tokens: int = 512
    """Most tokens of a batch, unless an operator knows better."""

    @property
    def alive(self) -> bool:
        """False once the engine can never answer again."""
        return True

    @abstractmethod
    def run(self, tasks: Sequence[Task]) -> list[Output]:
        """One output a task, in order; at least one task, any lengths, selections and kinds.

        Raises:
            ServiceError: the batch failed; the message holds nothing of the texts.

        """

    def warm_up(self, batch_tokens: int, longest: int) -> None:  # noqa: B027
        """Do once whatever is slow the first time, for batches and texts of at most so many tokens.

        Called before anything else.
        """

    def close(self) -> None:  # noqa: B027
        """Release what the engine holds; it is not used afterwards."""
