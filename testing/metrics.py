"""Values of a page of Prometheus metrics."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families


def samples(text: str) -> dict[str, float]:
    """Return each sample's value by its name and sorted labels: `name [('label', 'value')]`."""
    return {
        f"{sample.name} {sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(values: Mapping[str, float], prefix: str) -> float:
    """Return the sum of the samples whose key begins with a prefix: `name [` selects a metric."""
    return sum(value for key, value in values.items() if key.startswith(prefix))
