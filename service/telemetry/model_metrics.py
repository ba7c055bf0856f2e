"""Metrics of models: queues, batches and engines; without models that are no longer in memory."""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from model.numerics.comparison import Kind
from service.engines.contract import DeviceState, Task, TextTask
from service.scheduler.admission import BatchLimits, RefusalReason
from service.scheduler.lanes import LANE_SHARES, LaneName
from service.telemetry.registry import (
    BATCH_TOKENS,
    INPUT_TOKENS,
    MOST_NOTES,
    SECONDS,
    TEXTS,
    Registry,
    observe,
)


class PresentSeries:
    """Series of a gauge, each reported only while its labels are set."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._present: set[tuple[str, ...]] = set()

    def set(self, values: Mapping[tuple[str, ...], int]) -> None:
        """Set the values by labels; set all other series to 0, with which they are not reported."""
        for labels in self._present.difference(values):
            self._gauge.labels(*labels).set(0)
        for labels, value in values.items():
            self._gauge.labels(*labels).set(value)
        self._present = set(values)


class LoadedModels(Collector):
    """Metrics of a registry without the series of models that no process has in memory.

    The values of these models are kept, so the counters of a model that is loaded again continue.
    """

    def __init__(self, source: CollectorRegistry, versions: str, present: Collection[str]) -> None:
        """Set the registry of all metrics.

        `versions` is the gauge that counts the versions of each model in memory. Series with 0 of
        the gauges in `present`, of `PresentSeries`, are left out.
        """
        self._source = source
        self._versions = versions
        self._present = present

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        families = [*self._source.collect()]
        counts = collections.Counter[str]()
        for family in families:
            for sample in family.samples if family.name == self._versions else ():
                counts[sample.labels["model"]] += int(sample.value)
        absent = {model for model, count in counts.items() if not count}
        for family in families:
            zeros = family.name not in self._present
            family.samples = [
                sample
                for sample in family.samples
                if sample.labels.get("model") not in absent and (zeros or sample.value)
            ]
            yield family


_MODEL, _LANE, _DEVICE = ["model"], ["model", "lane"], ["model", "device"]
VERSIONS, ENGINES = "headscope_model_versions", "headscope_engine_info"
VERIFICATION_RESULTS = ("passed", "failed", "unknown")
NO_LIMITS = BatchLimits(0, 0, 0)
Batch = tuple[float, int, int]
"""Seconds, texts and tokens of a batch."""


class ModelFamilies:
    """Metrics with a label for the model, declared once in each process."""

    def __init__(self, registry: Registry) -> None:
        """Declare the metrics."""
        self.registry = registry
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        summed = partial(Gauge, registry=registry, multiprocess_mode="livesum")
        most = partial(Gauge, registry=registry, multiprocess_mode="livemax")
        least = partial(Gauge, registry=registry, multiprocess_mode="livemin")
        self.tokens = counter("headscope_tokens", "Tokens computed, without padding.", _LANE)
        self.input_tokens = histogram(
            "headscope_input_tokens",
            "Tokens of an input, including special tokens.",
            _MODEL,
            buckets=INPUT_TOKENS,
        )
        self.warnings = {
            "truncated": counter("headscope_truncated_inputs", "Truncated inputs.", _MODEL),
            "prompt_missing": counter(
                "headscope_prompt_missing_inputs",
                "Inputs without a prompt, for models with prompts but no default.",
                _MODEL,
            ),
            "unknown_tokens": counter(
                "headscope_unknown_token_inputs",
                "Inputs in which over a tenth of the tokens are the unknown token.",
                _MODEL,
            ),
        }
        """Name of a warning → counter."""
        self.picture_seconds = histogram(
            "headscope_picture_seconds",
            "Time until the pictures of a request were decoded and prepared.",
            _MODEL,
            buckets=SECONDS,
        )
        self.batch_texts = histogram(
            "headscope_batch_texts", "Texts of a batch.", _LANE, buckets=TEXTS
        )
        self.batch_tokens = histogram(
            "headscope_batch_tokens", "Tokens of a batch.", _LANE, buckets=BATCH_TOKENS
        )
        self.queue_seconds = histogram(
            "headscope_queue_seconds",
            "Time that a request waited for its first batch, or until it was dropped.",
            _LANE,
            buckets=SECONDS,
        )
        self.inference_seconds = histogram(
            "headscope_inference_seconds", "Computing time of a batch.", _LANE, buckets=SECONDS
        )
        self.failed_batches = counter(
            "headscope_failed_batches", "Batches that ended in an error.", _LANE
        )
        self.dropped_texts = counter(
            "headscope_dropped_texts", "Texts dropped because their client left.", _LANE
        )
        self.queue_refused = counter(
            "headscope_queue_refused",
            "Requests that a queue rejected, or dropped after a wait.",
            [*_LANE, "reason"],
        )
        self.queue_tokens = summed("headscope_queue_tokens", "Tokens waiting.", _LANE)
        self.queue_texts = summed("headscope_queue_texts", "Texts and maps waiting.", _LANE)
        self.queue_tokens_limit = summed(
            "headscope_queue_tokens_limit", "Maximum number of waiting tokens.", _LANE
        )
        self.queue_texts_limit = summed(
            "headscope_queue_texts_limit", "Maximum number of waiting texts.", _LANE
        )
        self.batch_tokens_limit = most(
            "headscope_batch_tokens_limit", "Maximum tokens of a batch.", _MODEL
        )
        self.input_tokens_limit = most(
            "headscope_input_tokens_limit", "Maximum tokens of an input.", _MODEL
        )
        self.engine_calls_limit = summed(
            "headscope_engine_calls_limit",
            "Maximum number of concurrent batches of an engine.",
            _MODEL,
        )
        self.degraded = most(
            "headscope_degraded",
            "1 while a stand-in serves in place of a model's failed engine.",
            _MODEL,
        )
        self.device_up = least(
            "headscope_device_up",
            "1 while a device of a model on several devices computes, 0 once it is lost.",
            _DEVICE,
        )
        self.device_tokens = summed(
            "headscope_device_queued_tokens", "Tokens in flight on a device.", _DEVICE
        )
        self.engine_restarts = counter(
            "headscope_engine_restarts", "Restarts of failed engines.", _MODEL
        )
        self.verified_batches = counter(
            "headscope_verified_batches",
            "Batches that PyTorch computed again for comparison.",
            [*_MODEL, "result"],
        )
        self.live_max_abs_diff = most(
            "headscope_live_max_abs_diff",
            "Largest difference from PyTorch in live verification.",
            [*_MODEL, "kind"],
        )
        self.engines = PresentSeries(
            most(
                ENGINES,
                "1, labelled with a model's engine, provider and attention kernels.",
                ["engine", "provider", "attention_kernels", "precision", *_MODEL],
            )
        )
        self.versions = PresentSeries(
            summed(
                VERSIONS,
                "Processes that have a version of a model, by its state.",
                [*_MODEL, "version", "fingerprint", "state"],
            )
        )


class ModelMetrics:
    """Metrics of one model, updated by its schedulers, watch and verification."""

    def __init__(self, families: ModelFamilies, model: str) -> None:
        """Start every series at 0, so that the first event is an increase."""
        self._all = families
        self._model = model
        self._worst: dict[Kind, float] = {}
        self._devices: set[int] = set()
        self._registry = registry = families.registry
        for metric in (*families.warnings.values(), families.engine_restarts, families.degraded):
            metric.labels(model)
        for result in VERIFICATION_RESULTS:
            families.verified_batches.labels(model, result)
        self._lengths: list[int] = registry.notes(
            partial(observe, families.input_tokens.labels(model))
        )
        self._batches: dict[LaneName, list[Batch]] = {}
        """Lane → batches that are not counted yet."""
        self._waits: dict[LaneName, list[float]] = {}
        """Lane → seconds of waiting that are not counted yet."""
        lane: LaneName
        for lane in LANE_SHARES:
            of_lane = model, lane
            for metric in (families.failed_batches, families.dropped_texts):
                metric.labels(*of_lane)
            self._batches[lane] = registry.notes(self._count_batches(*of_lane))
            self._waits[lane] = registry.notes(
                partial(observe, families.queue_seconds.labels(*of_lane))
            )
            for reason in get_args(RefusalReason):
                families.queue_refused.labels(*of_lane, reason)

    def _count_batches(self, *labels: str) -> Callable[[list[Batch]], None]:
        """Return the function that counts noted batches of a lane."""
        families = self._all
        tokens = families.tokens.labels(*labels)
        batch_texts = families.batch_texts.labels(*labels)
        batch_tokens = families.batch_tokens.labels(*labels)
        inference_seconds = families.inference_seconds.labels(*labels)

        def count(batches: list[Batch]) -> None:
            observe(inference_seconds, [batch[0] for batch in batches])
            if lengths := [batch[1:] for batch in batches if batch[1]]:
                texts, sums = zip(*lengths, strict=True)
                tokens.inc(sum(sums))
                observe(batch_texts, texts)
                observe(batch_tokens, sums)

        return count

    def batch_finished(self, lane: LaneName, tasks: Sequence[Task], seconds: float) -> None:
        """Note a computed batch; a batch with only maps has no new text."""
        lengths = [task.tokens for task in tasks if isinstance(task, TextTask)]
        batches = self._batches[lane]
        batches.append((seconds, len(lengths), sum(lengths)))
        if len(batches) >= MOST_NOTES:
            self._registry.count()

    def batch_failed(self, lane: LaneName) -> None:
        """Count a failed batch."""
        self._all.failed_batches.labels(self._model, lane).inc()

    def dropped(self, lane: LaneName) -> None:
        """Count a text that was dropped before it was computed."""
        self._all.dropped_texts.labels(self._model, lane).inc()

    def waited(self, lane: LaneName, seconds: float) -> None:
        """Note a request's wait for its first batch, which may never have begun."""
        self._waits[lane].append(seconds)

    def refused(self, lane: LaneName, reason: RefusalReason) -> None:
        """Count a request that was not admitted, or not computed in time."""
        self._all.queue_refused.labels(self._model, lane, reason).inc()

    def restarted(self) -> None:
        """Count the restart of a failed engine."""
        self._all.engine_restarts.labels(self._model).inc()

    def tokenized(self, lengths: Sequence[int], warnings: Mapping[str, int]) -> None:
        """Note the lengths of a request's inputs, and count the warnings about them."""
        self._lengths.extend(lengths)
        for name, count in warnings.items():
            self._all.warnings[name].labels(self._model).inc(count)

    def pictures_read(self, seconds: float) -> None:
        """Record the time until the pictures of a request were decoded and prepared."""
        self._all.picture_seconds.labels(self._model).observe(seconds)

    def queued(self, lane: str, tokens: int, texts: int) -> None:
        """Set the tokens and texts that wait in a lane."""
        self._all.queue_tokens.labels(self._model, lane).set(tokens)
        self._all.queue_texts.labels(self._model, lane).set(texts)

    def on_devices(self, devices: Sequence[DeviceState]) -> None:
        """Set the state of each device, and its tokens in flight; of several versions, both."""
        up, tokens = dict.fromkeys(self._devices, True), collections.Counter[int]()
        for device in devices:
            up[device.id] = up.get(device.id, True) and device.state == "serving"
            tokens[device.id] += device.queued_tokens
        for number, value in up.items():
            self._all.device_up.labels(self._model, number).set(value)
            self._all.device_tokens.labels(self._model, number).set(tokens[number])
        self._devices = {*up}

    def stood_in(self, *, stood_in: bool) -> None:
        """Set whether a stand-in serves the model in place of its own engine."""
        self._all.degraded.labels(self._model).set(stood_in)

    def verified(self, result: str) -> None:
        """Record a live verification: `passed`, `failed`, or `unknown` if it could not run."""
        self._all.verified_batches.labels(self._model, result).inc()

    def live_difference(self, kind: Kind, max_abs_diff: float) -> None:
        """Record the difference of a live verification, and keep the largest of each kind."""
        self._worst[kind] = max(self._worst.get(kind, 0.0), max_abs_diff)
        self._all.live_max_abs_diff.labels(self._model, kind).set(self._worst[kind])

    def limited(self, calls: int, limits: BatchLimits, most_tokens: int) -> None:
        """Set the limits of the model; `calls` is 0 without an engine."""
        self._all.engine_calls_limit.labels(self._model).set(calls)
        self._all.batch_tokens_limit.labels(self._model).set(limits.max_batch_tokens)
        self._all.input_tokens_limit.labels(self._model).set(most_tokens)
        for lane in LANE_SHARES:
            self._all.queue_tokens_limit.labels(self._model, lane).set(limits.max_queue_tokens)
            self._all.queue_texts_limit.labels(self._model, lane).set(limits.max_queue_texts)

    def unloaded(self) -> None:
        """Set all gauges to 0, so that they add nothing to the gauges of other workers."""
        for lane in LANE_SHARES:
            self.queued(lane, 0, 0)
        self.limited(0, NO_LIMITS, 0)
        self.stood_in(stood_in=False)
        self.on_devices(())  # 1 is neutral where the minimum of workers counts
        for kind in self._worst:
            self._all.live_max_abs_diff.labels(self._model, kind).set(0)
        self._worst.clear()
