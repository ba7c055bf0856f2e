"""The metrics of models: what their queues, batches and engines did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from model.artifact.compare import Kind
from service.engines.contract import Engine, Task, TextTask
from service.scheduler.admission import BatchLimits, RefusalReason
from service.scheduler.lanes import LANE_SHARES, LaneName
from service.telemetry.buckets import BATCH_TOKENS, INPUT_TOKENS, SECONDS, TEXTS

_MODEL, _LANE = ["model"], ["model", "lane"]
VERIFICATION_RESULTS = ("passed", "failed", "unknown")


class ModelFamilies:
    """Metrics with a model's name, declared once a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Declare them."""
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        summed = partial(Gauge, registry=registry, multiprocess_mode="livesum")
        most = partial(Gauge, registry=registry, multiprocess_mode="livemax")
        self.tokens = counter("headscope_tokens", "Tokens computed, without padding.", _LANE)
        self.input_tokens = histogram(
            "headscope_input_tokens",
            "Length of an input, special tokens included.",
            _MODEL,
            buckets=INPUT_TOKENS,
        )
        self.notices = {
            "truncated": counter(
                "headscope_truncated_inputs", "Inputs that were cut to the most tokens.", _MODEL
            ),
            "prompt_missing": counter(
                "headscope_prompt_missing_inputs",
                "Inputs without a prompt, of a model that names prompts and no default.",
                _MODEL,
            ),
            "unknown_tokens": counter(
                "headscope_unknown_token_inputs",
                "Inputs in which more than a tenth of the tokens are the unknown token.",
                _MODEL,
            ),
        }
        """Counters by the name of a notice."""
        self.batch_texts = histogram(
            "headscope_batch_texts", "Texts of a batch.", _LANE, buckets=TEXTS
        )
        self.batch_tokens = histogram(
            "headscope_batch_tokens", "Tokens of a batch.", _LANE, buckets=BATCH_TOKENS
        )
        self.queue_seconds = histogram(
            "headscope_queue_seconds",
            "Time that a request waited for its first batch, or in vain until its deadline.",
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
            "Requests that a queue did not take, or that waited in it in vain.",
            [*_LANE, "reason"],
        )
        self.queue_tokens = summed("headscope_queue_tokens", "Tokens waiting.", _LANE)
        self.queue_texts = summed("headscope_queue_texts", "Texts and maps waiting.", _LANE)
        self.queue_tokens_limit = summed(
            "headscope_queue_tokens_limit", "Most tokens that may wait.", _LANE
        )
        self.queue_texts_limit = summed(
            "headscope_queue_texts_limit", "Most texts that may wait.", _LANE
        )
        self.batch_tokens_limit = most(
            "headscope_batch_tokens_limit", "Most tokens of a batch.", _MODEL
        )
        self.input_tokens_limit = most(
            "headscope_input_tokens_limit", "Most tokens of an input.", _MODEL
        )
        self.engine_calls_limit = summed(
            "headscope_engine_calls_limit", "Batches that engines compute at once.", _MODEL
        )
        self.degraded = most(
            "headscope_degraded",
            "1 while a model's own engine has failed and another serves in its place.",
            _MODEL,
        )
        self.engine_restarts = counter(
            "headscope_engine_restarts", "Engines started again after they had failed.", _MODEL
        )
        self.verified_batches = counter(
            "headscope_verified_batches",
            "Batches that PyTorch computed again.",
            [*_MODEL, "result"],
        )
        self.live_max_abs_diff = most(
            "headscope_live_max_abs_diff",
            "Largest difference to PyTorch of any batch that it computed again.",
            [*_MODEL, "kind"],
        )
        self.engine_info = most(
            "headscope_engine_info",
            "1, with a model's own engine and the provider that is really in use.",
            ["engine", "provider", "precision", *_MODEL],
        )


class ModelMetrics:
    """The metrics of one model; its schedulers, watch and verification report to it."""

    def __init__(self, families: ModelFamilies, model: str) -> None:
        """Start every series at 0, from which a first event is an increase."""
        self._all = families
        self._model = model
        self._worst: dict[Kind, float] = {}
        for metric in (
            *(families.input_tokens, *families.notices.values()),
            *(families.engine_restarts, families.degraded),
        ):
            metric.labels(model)
        for result in VERIFICATION_RESULTS:
            families.verified_batches.labels(model, result)
        for lane in LANE_SHARES:
            for metric in (
                *(families.tokens, families.failed_batches, families.dropped_texts),
                *(families.batch_texts, families.batch_tokens),
                *(families.queue_seconds, families.inference_seconds),
            ):
                metric.labels(model, lane)
            for reason in get_args(RefusalReason):
                families.queue_refused.labels(model, lane, reason)

    def batch_finished(self, lane: LaneName, tasks: Sequence[Task], seconds: float) -> None:
        """A batch was computed."""
        label = self._model, lane
        lengths = [task.tokens for task in tasks if isinstance(task, TextTask)]
        self._all.inference_seconds.labels(*label).observe(seconds)
        if lengths:  # a batch of maps alone has no new text
            self._all.tokens.labels(*label).inc(sum(lengths))
            self._all.batch_texts.labels(*label).observe(len(lengths))
            self._all.batch_tokens.labels(*label).observe(sum(lengths))

    def batch_failed(self, lane: LaneName) -> None:
        """A batch ended in an error."""
        self._all.failed_batches.labels(self._model, lane).inc()

    def dropped(self, lane: LaneName) -> None:
        """A text was dropped before it was computed."""
        self._all.dropped_texts.labels(self._model, lane).inc()

    def waited(self, lane: LaneName, seconds: float) -> None:
        """The first batch of a request began, or never did."""
        self._all.queue_seconds.labels(self._model, lane).observe(seconds)

    def refused(self, lane: LaneName, reason: RefusalReason) -> None:
        """A request was not admitted, or not computed in time."""
        self._all.queue_refused.labels(self._model, lane, reason).inc()

    def restarted(self) -> None:
        """An engine that had failed was started again."""
        self._all.engine_restarts.labels(self._model).inc()

    def tokenized(self, lengths: Sequence[int], notices: Mapping[str, int]) -> None:
        """Count the inputs of a request, and the notices about them."""
        histogram = self._all.input_tokens.labels(self._model)
        for length in lengths:
            histogram.observe(length)
        for name, count in notices.items():
            self._all.notices[name].labels(self._model).inc(count)

    def queued(self, lane: str, tokens: int, texts: int) -> None:
        """What waits in a lane now."""
        self._all.queue_tokens.labels(self._model, lane).set(tokens)
        self._all.queue_texts.labels(self._model, lane).set(texts)

    def stood_in(self, *, stood_in: bool) -> None:
        """Whether another engine than its own serves the model."""
        self._all.degraded.labels(self._model).set(stood_in)

    def verified(self, result: str) -> None:
        """A batch was computed again: `passed`, `failed`, or `unknown` where that was not done."""
        self._all.verified_batches.labels(self._model, result).inc()

    def live_difference(self, kind: Kind, max_abs_diff: float) -> None:
        """A batch was computed again, and was so far from it."""
        self._worst[kind] = max(self._worst.get(kind, 0.0), max_abs_diff)
        self._all.live_max_abs_diff.labels(self._model, kind).set(self._worst[kind])

    def serves(self, engine: Engine, precision: str, limits: BatchLimits, most_tokens: int) -> None:
        """An engine serves the model within these limits."""
        info = (engine.name, engine.provider, precision, self._model)
        self._all.engine_info.labels(*info).set(1)
        self._all.engine_calls_limit.labels(self._model).set(engine.concurrency)
        self._all.batch_tokens_limit.labels(self._model).set(limits.max_batch_tokens)
        self._all.input_tokens_limit.labels(self._model).set(most_tokens)
        for lane in LANE_SHARES:
            self._all.queue_tokens_limit.labels(self._model, lane).set(limits.max_queue_tokens)
            self._all.queue_texts_limit.labels(self._model, lane).set(limits.max_queue_texts)
