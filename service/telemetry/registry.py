"""All metrics: their names and bounds of buckets, and a registry that counts noted events.

An event on the way of a request appends a tuple to a list. The lists are counted when the
metrics are read, and ten times a second by the server, since prometheus_client takes a lock or two
for every value that it counts. `observe` uses private attributes of its release 0.26.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any, TypeVar, cast

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
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


def counter(documentation: str, *labels: str) -> Counter:
    """Declare a counter of `Registry`."""
    return cast("Counter", partial(Counter, documentation=documentation, labelnames=labels))


def histogram(buckets: Sequence[float], documentation: str, *labels: str) -> Histogram:
    """Declare a histogram of `Registry`, by the upper bounds of its buckets."""
    kind = partial(Histogram, documentation=documentation, labelnames=labels, buckets=buckets)
    return cast("Histogram", kind)


def gauge(mode: Any, documentation: str, *labels: str) -> Gauge:
    """Declare a gauge of `Registry`; `mode` aggregates it over the running workers."""
    kind = partial(Gauge, documentation=documentation, labelnames=labels, multiprocess_mode=mode)
    return cast("Gauge", kind)


AGGREGATE: Mapping[str, Callable[[Iterable[float]], float]]
AGGREGATE = {"livesum": sum, "livemax": max, "livemin": min}
"""Mode of a gauge → aggregation of a series over the running workers, and over models in one."""
total, largest, smallest = (partial(gauge, mode) for mode in AGGREGATE)
Sample = tuple[str, tuple[str, ...], float]
"""Name of a gauge of models in `Registry`, labels and value."""
LANE, DEVICE = ("model", "lane"), ("model", "device")


class Registry(CollectorRegistry):
    """Registry of all metrics, which counts all notes before it yields the metrics.

    docs/metrics.md lists the metrics. Each has the name of its attribute with the prefix
    `headscope_`; names are defined only here.
    """

    requests = counter(
        "Requests answered, including errors and refusals of incomplete requests.",
        *("route", "status"),
    )
    request_seconds = histogram(
        SECONDS, "Time from the last byte of a request to the last byte of its reply.", "route"
    )
    requests_in_flight = total(
        "Requests whose reply is not complete, including the request for metrics."
    )
    request_bytes = counter("Bytes of the bodies of answered requests.", "route")
    reply_bytes = counter("Bytes of the bodies of replies.", "route")
    reply_prediction_ratio = histogram(
        PREDICTION,
        "Ratio of the bytes of a reply to the bytes that were predicted and reserved; above 1 too "
        "few were.",
        "route",
    )
    client_disconnects = counter("Requests whose client left before the reply was complete.")
    refused = counter(
        "Rejected requests: all errors except failures of accepted requests.", "route", "reason"
    )

    build_info = largest(
        "1, labelled with the versions of Headscope and Python.", "version", "python"
    )
    ready = smallest("1 unless readiness is known to fail; a scrape starts no probe.")
    connections = total("Open connections of clients.")
    body_bytes_in_flight = total("Bytes of the bodies of requests in memory.")
    reply_bytes_in_flight = total("Bytes of replies in memory or reserved.")
    body_bytes_in_flight_limit = total("Maximum bytes of request bodies in flight.")
    reply_bytes_in_flight_limit = total("Maximum bytes of replies in flight.")
    request_seconds_limit = smallest("Maximum time until a reply begins.")
    queue_seconds_limit = smallest("Maximum wait of a request in a queue.")
    queue_seconds_target = smallest("Target wait, exceeded only by bursts.")
    memory_available_bytes = smallest(
        "Bytes available to processes, by the machine or the container's limit."
    )
    workers = total("Number of serving processes.")
    worker_restarts = counter("Restarts of ended workers.")
    models_bytes = total("Bytes of the models in memory, as the budget counts them.")
    models_bytes_limit = total("Maximum bytes of the models in memory; 0 is no limit.")
    model_loads = counter("Models loaded after the start.")
    model_load_failures = counter(
        "Failed loads of models: invalid (cannot be opened, started or verified), memory (beyond "
        "the budget) or refused (the request may not start the export).",
        "reason",
    )
    model_evictions = counter("Models unloaded to make room for another.")

    tokens = counter("Tokens computed, without padding.", *LANE)
    input_tokens = histogram(INPUT_TOKENS, "Tokens of an input, including special tokens.", "model")
    truncated_inputs = counter("Truncated inputs.", "model")
    prompt_missing_inputs = counter(
        "Inputs without a prompt, for models with prompts but no default.", "model"
    )
    unknown_token_inputs = counter(
        "Inputs in which over a tenth of the tokens are the unknown token.", "model"
    )
    picture_seconds = histogram(
        SECONDS, "Time until the pictures of a request were decoded and prepared.", "model"
    )
    batch_texts = histogram(TEXTS, "Texts of a batch.", *LANE)
    batch_tokens = histogram(BATCH_TOKENS, "Tokens of a batch.", *LANE)
    queue_seconds = histogram(
        SECONDS, "Time that a request waited for its first batch, or until it was dropped.", *LANE
    )
    inference_seconds = histogram(SECONDS, "Computing time of a batch.", *LANE)
    failed_batches = counter("Batches that ended in an error.", *LANE)
    dropped_texts = counter("Texts dropped because their client left.", *LANE)
    queue_refused = counter(
        "Requests that a queue refused (tokens, texts, wait, deadline), or whose deadline passed "
        "in it (deadline).",
        *(*LANE, "reason"),
    )
    queue_tokens = total("Tokens waiting.", *LANE)
    queue_texts = total("Texts and maps waiting.", *LANE)
    queue_tokens_limit = total("Maximum number of waiting tokens.", *LANE)
    queue_texts_limit = total("Maximum number of waiting texts.", *LANE)
    batch_tokens_limit = largest("Maximum tokens of a batch.", "model")
    input_tokens_limit = largest("Maximum tokens of an input.", "model")
    engine_calls_limit = total(
        "Number of batches that an engine computes at once: if the rate of "
        "headscope_inference_seconds_sum equals it, the engine is always busy.",
        "model",
    )
    degraded = largest("1 while a stand-in serves in place of a model's failed engine.", "model")
    device_up = smallest(
        "1 while a device of a model on several devices computes, 0 once it is lost.", *DEVICE
    )
    device_queued_tokens = total(
        "Tokens in flight on a device, by which the next batch chooses its device.", *DEVICE
    )
    engine_restarts = counter("Restarts of failed engines.", "model")
    verified_batches = counter(
        "Batches that PyTorch computed again for comparison: passed, failed, or unknown if PyTorch "
        "could not.",
        *("model", "result"),
    )
    live_max_abs_diff = largest(
        "Largest difference from PyTorch in live verification, of hidden states, attention weights "
        "and pooled unit vectors.",
        *("model", "kind"),
    )
    engine_info = largest(
        "1, labelled with a model's engine, provider, attention kernels on a GPU, and precision.",
        *("engine", "provider", "attention_kernels", "precision", "model"),
    )
    model_versions = total(
        "Processes that have a version of a model, by its state: serving, loaded, loading (without "
        "a fingerprint) or draining.",
        *("model", "version", "fingerprint", "state"),
    )

    def __init__(self) -> None:
        super().__init__()
        for name, declare in vars(Registry).items():
            if isinstance(declare, partial):
                setattr(self, name, declare(f"headscope_{name}", registry=self))
        self._noted: list[tuple[list[Any], Callable[[list[Any]], object]]] = []
        self._counting = Lock()
        self._sampled: set[tuple[str, tuple[str, ...]]] = set()
        """Gauge and labels of the last samples."""

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

    def sample(self, samples: Iterable[Sample]) -> None:
        """Set all gauges of models; a series may have a sample of each of several versions.

        Series of earlier samples are set to a value that changes nothing over the workers.
        """
        values = defaultdict[tuple[str, tuple[str, ...]], list[float]](list)
        for name, labels, value in samples:
            values[name, labels].append(value)
        for name, labels in self._sampled | values.keys():
            series: Gauge = getattr(self, name)
            mode = series._multiprocess_mode
            neutral = [float(mode == "livemin")]  # such gauges are 0 or 1
            series.labels(*labels).set(AGGREGATE[mode](values.get((name, labels), neutral)))
        self._sampled = {*values}

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
