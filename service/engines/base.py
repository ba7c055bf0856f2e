"""The whole contract between the scheduler and an engine.

Notation: S tokens of one text, H hidden size, L layers, N heads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

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
class Task:
    """One text and what is asked of it. Layers and heads are non-negative and in range."""

    input_ids: Ids
    """`[S]`, S ≥ 1."""
    segment_ids: Ids
    """`[S]`."""
    hidden_layers: tuple[int, ...] = ()
    """Hidden states asked for, each 0 … L."""
    pooling: Pooling | None = None
    attention_layers: tuple[int, ...] = ()
    """Layers whose maps are asked for, each 0 … L−1."""
    attention_heads: tuple[int, ...] = ()
    """Heads whose maps are asked for, each 0 … N−1."""

    @property
    def tokens(self) -> int:
        """S."""
        return len(self.input_ids)


@dataclass(slots=True)
class Output:
    """What was asked for, in the order it was asked."""

    hidden: list[Floats]
    """One `[S, H]` a hidden layer asked for."""
    pooled: Floats | None = None
    """`[H]`, not normalised."""
    attention: Floats | None = None
    """`[layers, heads, S, S]`, over keys."""


class Engine(ABC):
    """Computes batches. `run` may be called from `concurrency` threads at once."""

    name: str
    provider: str
    """What really computes, as the runtime reports it."""
    concurrency: int
    """Calls of `run` that are worth making at the same time."""

    @property
    def alive(self) -> bool:
        """False once the engine can never answer again."""
        return True

    @abstractmethod
    def run(self, tasks: Sequence[Task]) -> list[Output]:
        """Compute one batch.

        Args:
            tasks: at least one; any lengths, any selections.

        Returns:
            One output a task, in order.

        Raises:
            ServiceError: the batch failed; the message holds nothing of the texts.

        """

    def close(self) -> None:  # noqa: B027
        """Release what the engine holds; it is not used afterwards."""
