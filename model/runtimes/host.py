"""Base of runtimes on a CPU: selection and pooling of hidden states in host memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence

from model.numerics.batch import Batch, dummies
from model.numerics.pooling import TextPooling, l2_normalize
from model.runtimes.contract import Floats, Runtime, layers_of

LONE_TOKENS = 128
"""Maximum tokens of a batch that all cores compute together if no other call is in flight."""


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
        layers = layers_of(hidden, poolings)
        states = dict(zip(layers, self.hidden_states(batch, layers, head_mask), strict=True))
        pooled = cut(states, batch, [(pooling.text, pooling.layer) for pooling in poolings])
        vectors = []
        for pooling, rows in zip(poolings, pooled, strict=True):
            vector = self.pool(rows, pooling.mode, pooling.first_token, pooling.left_out)
            n = pooling.unit_features
            if n:
                vector[:n] = l2_normalize(vector[:n])
            vectors.append(vector)
        return cut(states, batch, hidden), vectors

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
