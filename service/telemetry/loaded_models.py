"""Metrics without the series of models that are no longer in memory."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import Metric
from prometheus_client.registry import Collector


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
        """Set the source.

        Args:
            source: registry of all metrics.
            versions: name of the gauge that counts the versions of each model in memory.
            present: names of gauges of `PresentSeries`, whose series with 0 are left out.

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
