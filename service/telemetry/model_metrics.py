"""Metrics of models: queues, batches and engines; without models that are no longer in memory."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import get_args

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from model.numerics.comparison import Kind
from service.engines.contract import DeviceState, Task, TextTask
from service.scheduler.call import RefusalReason
from service.scheduler.lanes import LANE_SHARES, BatchLimits, LaneName
from service.telemetry.registry import MOST_NOTES, Registry, observe

VERSIONS = "headscope_model_versions"
"""Gauge that counts the versions of each model in memory."""
PRESENT = (VERSIONS, "headscope_engine_info")
"""Gauges of `PresentSeries`."""


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

    def __init__(self, source: CollectorRegistry) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        families = [*self._source.collect()]
        counts = collections.Counter[str]()
        for family in families:
            for sample in family.samples if family.name == VERSIONS else ():
                counts[sample.labels["model"]] += int(sample.value)
        absent = {model for model, count in counts.items() if not count}
        for family in families:
            zeros = family.name not in PRESENT
            family.samples = [
                sample
                for sample in family.samples
                if sample.labels.get("model") not in absent and (zeros or sample.value)
            ]
            yield family


VERIFICATION_RESULTS = ("passed", "failed", "unknown")
NO_LIMITS = BatchLimits(0, 0, 0)
Batch = tuple[float, int, int]
"""Seconds, texts and tokens of a batch."""


class ModelMetrics:
    """Metrics of one model, updated by its schedulers, watch and verification."""

    def __init__(self, registry: Registry, model: str) -> None:
        """Start every series at 0, so that the first event is an increase."""
        self._all = registry
        self._model = model
        self._warnings = {
            "truncated": registry.truncated_inputs,
            "prompt_missing": registry.prompt_missing_inputs,
            "unknown_tokens": registry.unknown_token_inputs,
        }
        """Name of a warning → counter."""
        self._worst: dict[Kind, float] = {}
        self._devices: set[int] = set()
        for metric in (*self._warnings.values(), registry.engine_restarts, registry.degraded):
            metric.labels(model)
        for result in VERIFICATION_RESULTS:
            registry.verified_batches.labels(model, result)
        for lane in LANE_SHARES:
            for series in (
                *(registry.failed_batches, registry.dropped_texts, registry.tokens),
                *(registry.batch_texts, registry.batch_tokens, registry.inference_seconds),
            ):
                series.labels(model, lane)
            for reason in get_args(RefusalReason):
                registry.queue_refused.labels(model, lane, reason)
        lengths, seconds = registry.input_tokens.labels(model), registry.queue_seconds
        self._lengths: list[int] = registry.notes(partial(observe, lengths))
        self._waits: dict[str, list[float]] = {
            lane: registry.notes(partial(observe, seconds.labels(model, lane)))
            for lane in LANE_SHARES
        }
        self._batches: dict[str, list[Batch]] = {
            lane: registry.notes(partial(self._count, lane)) for lane in LANE_SHARES
        }

    def _count(self, lane: LaneName, batches: list[Batch]) -> None:
        """Count noted batches of a lane; a batch with only maps has no new text."""
        labels, with_texts = (self._model, lane), [batch for batch in batches if batch[1]]
        texts, tokens = [batch[1] for batch in with_texts], [batch[2] for batch in with_texts]
        observe(self._all.inference_seconds.labels(*labels), [batch[0] for batch in batches])
        self._all.tokens.labels(*labels).inc(sum(tokens))
        observe(self._all.batch_texts.labels(*labels), texts)
        observe(self._all.batch_tokens.labels(*labels), tokens)

    def batch_finished(self, lane: LaneName, tasks: Sequence[Task], seconds: float) -> None:
        """Note a computed batch."""
        lengths = [task.tokens for task in tasks if isinstance(task, TextTask)]
        batches = self._batches[lane]
        batches.append((seconds, len(lengths), sum(lengths)))
        if len(batches) >= MOST_NOTES:
            self._all.count()

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
            self._warnings[name].labels(self._model).inc(count)

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
            self._all.device_queued_tokens.labels(self._model, number).set(tokens[number])
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
