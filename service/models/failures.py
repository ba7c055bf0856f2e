"""Failed loads: reasons for admins, and a pause before requests repeat one."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from service.artifacts.repository import Target
from service.errors import Forbidden, InsufficientMemory, ModelNotLoaded
from service.telemetry.registry import Registry

FAILED_SECONDS = 30.0
"""Time for which requests do not repeat a failed load."""
FULL_SECONDS = 5.0
"""Time for which requests do not repeat a load that had too little memory or no export."""
FAILED = "cannot be loaded: the service's log has the reason"
"""Reason for callers without an admin key: the real one may contain paths of the service."""

_log = logging.getLogger("headscope")


@dataclass(frozen=True)
class _Failure:
    """Failed load of a version."""

    reason: str
    """Reason for admins."""
    until: float
    """`time.monotonic()` until which requests do not repeat the load."""
    error: InsufficientMemory | Forbidden | None = None
    """Error of the load if there was too little memory or no export."""


class Failures:
    """Last failed load of each version."""

    def __init__(self, metrics: Registry) -> None:
        self._metrics = metrics
        self._failed: dict[Target, _Failure] = {}

    def reason(self, target: Target) -> str:
        """Return the reason of the last load of a version, for admins; empty if it succeeded."""
        failure = self._failed.get(target)
        return failure.reason if failure else ""

    def record(self, targets: tuple[Target, Target], error: Exception) -> None:
        """Log, count and keep the error of a load.

        Args:
            targets: the version as it was asked for, and as the repository has it.
            error: error of the load.

        """
        _log.error("%s cannot be loaded: %s", targets[1], error)
        kept = error if isinstance(error, InsufficientMemory | Forbidden) else None
        reason = {InsufficientMemory: "memory", Forbidden: "refused"}.get(type(error), "invalid")
        self._metrics.model_load_failures.labels(reason).inc()
        until = time.monotonic() + (FULL_SECONDS if kept else FAILED_SECONDS)
        self._failed.update(dict.fromkeys(targets, _Failure(str(error), until, kept)))

    def forget(self, targets: tuple[Target, Target]) -> None:
        """Forget the failures of a version that is loaded now."""
        for target in targets:
            self._failed.pop(target, None)

    def check(self, target: Target) -> None:
        """Raise the error of a load if it failed a short time ago."""
        failure = self._failed.get(target)
        if failure is None or (left := failure.until - time.monotonic()) <= 0:
            return
        if isinstance(failure.error, Forbidden):
            raise Forbidden(failure.reason)
        if failure.error:
            raise failure.error.public_error()
        raise ModelNotLoaded(str(target), FAILED, retry_after_seconds=max(1, round(left)))
