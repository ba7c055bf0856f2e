"""What makes the many exports of a test run cheap: no process computes the same part of them twice.

Each process's first export is made as a user's is.
"""

from __future__ import annotations

import functools

from model.export import exporter

WITHOUT_WEIGHTS = ("export_attention", "export_device_attention", "export_device_pooling")
"""The graphs that depend on an encoder's configuration alone."""


@functools.cache
def share_work() -> None:
    """Keep each graph that holds no weights."""
    for name in WITHOUT_WEIGHTS:
        setattr(exporter, name, functools.cache(getattr(exporter, name)))
