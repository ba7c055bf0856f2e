"""Base of runtimes on a CPU: pooling and cutting of hidden states in host memory."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from model.artifact.batch import Batch, Ids, pack
from model.artifact.pooling import TextPooling, l2_normalize, pool
from model.artifact.task import TaskConfig
from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.errors import ModelError
from model.runtimes.contract import (
    NO_DECODER,
    NO_OWN_MAPS,
    NO_TASK_HEAD,
    Decoding,
    Floats,
    layers_of,
)
from model.runtimes.host_graphs import HostGraphs

LONE_TOKENS = 128
"""Most tokens of a batch that all cores compute together, if it is alone."""


class HostRuntime(HostGraphs, ABC):
    """A runtime whose hidden states come to the host whole, where they are cut and pooled.

    On a CPU each call runs on its caller's thread, which is best for the whole.
    """

    config: EncoderConfig
    task: TaskConfig | None = None
    decoder: DecoderConfig | None = None
    alive = True
    spare_calls = 0

    @abstractmethod
    def hidden_states(
        self, batch: Batch, layers: Sequence[int], head_mask: Floats | None = None
    ) -> list[Floats]:
        """`[T, H]` a layer."""

    def encode(
        self,
        batch: Batch,
        hidden: Sequence[tuple[int, int]],
        poolings: Sequence[TextPooling],
        head_mask: Floats | None = None,
    ) -> tuple[list[Floats], list[Floats]]:
        """`[S, H]` a hidden state, a view; `[H]` a pooling and mode."""
        layers = layers_of(hidden, poolings)
        states = dict(zip(layers, self.hidden_states(batch, layers, head_mask), strict=True))
        pooled = cut(states, batch, [(asked.text, asked.layer) for asked in poolings])
        vectors = []
        for asked, rows in zip(poolings, pooled, strict=True):
            vector = pool(rows, asked.mode, asked.first_token, asked.left_out)
            n = asked.unit_features
            if n:
                vector[:n] = l2_normalize(vector[:n])
            vectors.append(vector)
        return cut(states, batch, hidden), vectors

    def decode(self, asked: Decoding) -> tuple[list[Floats], list[Floats]]:
        """There is no decoder.

        Raises:
            ModelError: always.

        """
        del asked
        raise ModelError(NO_DECODER)

    def logprobs(self, rows: Floats, labels: Ids) -> Floats:
        """There is no decoder.

        Raises:
            ModelError: always.

        """
        del rows, labels
        raise ModelError(NO_DECODER)

    def score(self, rows: Floats) -> Floats:
        """There is no task head.

        Raises:
            ModelError: always.

        """
        del rows
        raise ModelError(NO_TASK_HEAD)

    def maps(self, batch: Batch) -> Floats:
        """They are recomputed, by `attention`.

        Raises:
            ModelError: always.

        """
        del batch
        raise ModelError(NO_OWN_MAPS)

    def warm_up(self, *_: int) -> None:
        """One short batch: a large one would keep its memory."""
        self.hidden_states(pack([([0], [0])]), [self.config.num_hidden_layers])


def cut(rows: Mapping[int, Floats], batch: Batch, asked: Sequence[tuple[int, int]]) -> list[Floats]:
    """The rows of single texts, views.

    Args:
        rows: by layer, `[T, H]` of all tokens of the batch.
        batch: whose texts.
        asked: (text, layer) of each.

    """
    ends = batch.cu_seqlens.tolist()
    return [rows[layer][ends[text] : ends[text + 1]] for text, layer in asked]


class Calls:
    """Counts the calls in flight."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_flight = 0

    @contextlib.contextmanager
    def call(self, batch: Batch) -> Iterator[bool]:
        """Context of one call; True if its batch is short and no other call is in flight."""
        with self._lock:
            self._in_flight += 1
            alone = self._in_flight == 1 and len(batch.input_ids) <= LONE_TOKENS
        try:
            yield alone
        finally:
            with self._lock:
                self._in_flight -= 1
