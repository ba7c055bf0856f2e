"""The numbers of a page of Prometheus metrics."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families


def samples(text: str) -> dict[str, float]:
    """The value of each sample, by its name and its sorted labels: `name [('label', 'value')]`."""
    return {
        f"{sample.name} {sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(found: Mapping[str, float], prefix: str) -> float:
    """The sum of the samples whose name and labels begin so: `name [` is all of a name."""
    return sum(value for key, value in found.items() if key.startswith(prefix))
