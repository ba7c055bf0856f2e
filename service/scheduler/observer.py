"""What a scheduler tells as it happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from service.engines.contract import Task
from service.scheduler.admission import RefusalReason
from service.scheduler.lanes import LaneName


class Observer(Protocol):
    """What the scheduler reports as it happens."""

    def tokenized(self, lengths: Sequence[int], notices: Mapping[str, int]) -> None:
        """Count a request's texts.

        Args:
            lengths: tokens of each text.
            notices: number of texts by the name of a notice about them.

        """

    def batch_finished(self, lane: LaneName, tasks: Sequence[Task], seconds: float) -> None:
        """A batch was computed."""

    def batch_failed(self, lane: LaneName) -> None:
        """A batch, or what is left of one after its right texts were answered, failed."""

    def dropped(self, lane: LaneName) -> None:
        """A text whose client left was dropped before it was computed."""

    def waited(self, lane: LaneName, seconds: float) -> None:
        """A request waited so long for its first batch, or in vain until it was due."""

    def restarted(self) -> None:
        """An engine that had failed was started again."""

    def refused(self, lane: LaneName, reason: RefusalReason) -> None:
        """A request was not admitted, or waited for too long."""
