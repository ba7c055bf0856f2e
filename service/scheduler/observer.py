"""Protocol of a scheduler's observer, which counts its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from service.engines.contract import Task
from service.scheduler.admission import RefusalReason
from service.scheduler.lanes import LaneName


class Observer(Protocol):
    """Receiver of a scheduler's events, for metrics."""

    def tokenized(self, lengths: Sequence[int], warnings: Mapping[str, int]) -> None:
        """Count a request's texts.

        Args:
            lengths: number of tokens of each text.
            warnings: number of texts by name of their warning.

        """

    def pictures_read(self, seconds: float) -> None:
        """Record the seconds until the pictures of a request were decoded and prepared."""

    def batch_finished(self, lane: LaneName, tasks: Sequence[Task], seconds: float) -> None:
        """Count a computed batch."""

    def batch_failed(self, lane: LaneName) -> None:
        """Count a failed batch, or a failed part of a batch."""

    def dropped(self, lane: LaneName) -> None:
        """Count a text that was dropped from the queue since its request ended."""

    def waited(self, lane: LaneName, seconds: float) -> None:
        """Record the seconds until a request's first batch began, or until its wait was over."""

    def restarted(self) -> None:
        """Count a restart of a failed engine."""

    def refused(self, lane: LaneName, reason: RefusalReason) -> None:
        """Count a request that was refused, or that waited for too long."""
