"""Registry of metrics whose events are noted first and counted later, and histograms' bounds.

An event on the way of a request appends a tuple to a list. The lists are counted when the
metrics are read, and ten times a second by the server, since prometheus_client takes a lock or two
for every value that it counts. `observe` uses private attributes of its release 0.26.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import Metric
from prometheus_client.samples import Exemplar

SECONDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.5, 5.0, 7.5),
    *(10.0, 15.0, 20.0, 30.0, 60.0),
)
"""Bounds in seconds, from the time of a small batch to the time limit of a large batch. Above
20 ms, neighbours differ by a factor of at most 1.75, which bounds the error of a quantile, as it is
interpolated within a bucket."""
TEXTS = tuple(2**power for power in range(12))
"""Bounds of 1 … 2048 texts: a CUDA batch has up to 16384 tokens, and a text rarely below eight."""
BATCH_TOKENS = tuple(2**power for power in range(2, 16))
"""Bounds of 4 … 32768 tokens, twice the maximum of a batch on CUDA."""
INPUT_TOKENS = tuple(2**power for power in range(2, 14))
"""Bounds of 4 … 8192 tokens."""
PREDICTION = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0)
"""Ratios of actual to predicted bytes; above 1, a reply took more memory than was reserved."""
MOST_NOTES = 1000
"""Length of a list at which its notes are counted, if nothing asked for them before."""

Note = TypeVar("Note")
ExemplarNote = tuple[dict[str, str], float, float]
"""Labels, value and Unix time of an exemplar."""


class Registry(CollectorRegistry):
    """Registry that counts all notes before it yields its metrics."""

    def __init__(self) -> None:
        super().__init__()
        self._noted: list[tuple[list[Any], Callable[[list[Any]], object]]] = []
        self._counting = Lock()

    def notes(self, count: Callable[[list[Note]], object]) -> list[Note]:
        """Return a list to which events append notes; `count` is called with all of them."""
        notes: list[Note] = []
        self._noted.append((notes, count))
        return notes

    def count(self) -> None:
        """Count all notes; may be called in any thread while events append further notes."""
        with self._counting:
            for notes, count in [*self._noted]:
                if taken := notes[:]:
                    del notes[: len(taken)]
                    count(taken)

    def collect(self) -> Iterable[Metric]:
        """Yield the current metrics."""
        self.count()
        return super().collect()


def observe(
    histogram: Histogram, values: Sequence[float], exemplars: Sequence[ExemplarNote | None] = ()
) -> None:
    """Count values in a histogram; a bucket keeps the last exemplar of the values in it."""
    buckets = histogram._buckets
    places = np.searchsorted(histogram._upper_bounds, values)
    histogram._sum.inc(sum(values))
    for bucket, count in zip(buckets, np.bincount(places).tolist(), strict=False):
        if count:
            bucket.inc(count)
    given = zip(places.tolist(), exemplars, strict=False)
    for place, exemplar in {place: exemplar for place, exemplar in given if exemplar}.items():
        buckets[place].set_exemplar(Exemplar(*exemplar))
