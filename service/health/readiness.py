"""Whether requests are answered, and rightly: of this process, and of all workers of a service."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping

import numpy as np

from service.engines.contract import Pooling, TextTask
from service.errors import EngineUnavailable, ServiceError
from service.health.live_verification import LiveVerification
from service.health.peers import Peers
from service.inference.engine_pool import EnginePool
from service.scheduler.scheduler import Scheduler

DEGRADED = "degraded: "
"""Prefix of a worker's answer while a stand-in serves there."""
FRESH_SECONDS = 5.0
"""Age of the last computed batch beyond which a probe is computed."""
PROBE_SECONDS = 2.0
"""Time for a probe, or for an engine to start."""
ANSWER_SECONDS = 1.0
"""Time for another worker to answer, beyond what it was asked to do."""


class ModelReadiness:
    """The real path of a model's engine, tried: a batch was computed just now, or is."""

    def __init__(
        self, engines: EnginePool, live_verification: LiveVerification, probe_layer: int = 0
    ) -> None:
        """Probe an engine by a hidden state that it has.

        Args:
            engines: of the model.
            live_verification: what it has found counts.
            probe_layer: number of the hidden state.

        """
        self.fallback_failure = ""
        """The reason for which the engine that would stand in cannot start."""
        self.engines = engines
        self._live_verification = live_verification
        self._probe_layer = probe_layer
        self._probed: tuple[float, str] = (-math.inf, "")
        """`time.monotonic()` of the last probe that failed, and how it did."""

    @property
    def known_failure(self) -> str:
        """The reason for which requests are not answered rightly, as far as known without a probe.

        A probe that failed counts until a batch is computed.
        """
        if failure := self._live_verification.problem or self.fallback_failure:
            return failure
        scheduler, (failed_at, failure) = self.engines.default, self._probed
        if self.engines.stand_in is None and scheduler.failure:
            return scheduler.failure
        return failure if scheduler.last_success < failed_at else ""

    async def check(self) -> str:
        """The reason for which only a stand-in serves; empty if none does.

        Raises:
            EngineUnavailable: requests are not answered, or not rightly.

        """
        failure = self._live_verification.problem or self.fallback_failure
        if failure:
            raise EngineUnavailable(failure, retry_after_seconds=5)
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                scheduler = await self.engines.get(None)
        except TimeoutError:
            raise EngineUnavailable("PyTorch is starting", retry_after_seconds=5) from None
        if scheduler.failure:
            raise EngineUnavailable(scheduler.failure, retry_after_seconds=5)
        if time.monotonic() - scheduler.last_success > FRESH_SECONDS:
            try:
                await _probe(scheduler, self._probe_layer)
            except EngineUnavailable as error:
                self._probed = (time.monotonic(), error.detail)
                raise
        return self.engines.failure


class Readiness:
    """Whether every model is served, here and by all workers of a service."""

    def __init__(self, models: Mapping[str, ModelReadiness], peers: Peers | None) -> None:
        """Ask for nothing yet.

        Args:
            models: by name.
            peers: the other workers of a service of several processes.

        """
        self.draining = False
        """Whether the process has been told to stop."""
        self._models = models
        self._peers = peers

    @property
    def known_failure(self) -> str:
        """As `check_process`, as far as it is known without a probe; empty where nothing is."""
        if self.draining:
            return "the service is stopping"
        failures = (model.known_failure for model in self._models.values())
        return next(filter(None, failures), "")

    async def check(self) -> str:
        """The reason for which only a stand-in serves, in any worker; empty if none does.

        Raises:
            EngineUnavailable: requests are not answered, or not rightly.

        """
        degraded = await self.check_process()
        if self._peers:
            found = await self._peers.ask("ready", PROBE_SECONDS + ANSWER_SECONDS)
            for index, answer in found.items():
                if answer.startswith(DEGRADED):
                    degraded = degraded or f"worker {index}: {answer.removeprefix(DEGRADED)}"
                elif answer:
                    raise EngineUnavailable(f"worker {index}: {answer}", retry_after_seconds=5)
        return degraded

    async def answer(self) -> str:
        """The answer of one worker to the others: empty, the stand-in's reason, or the failure."""
        try:
            degraded = await self.check_process()
        except ServiceError as error:
            return error.detail
        return DEGRADED + degraded if degraded else ""

    async def check_process(self) -> str:
        """The check of this process alone, see `check`; of several models each is named."""
        if self.draining:
            raise EngineUnavailable("the service is stopping", retry_after_seconds=5)
        first, *others = self._models.values()
        if not others:
            return await first.check()
        found = await asyncio.gather(*map(_found, self._models.values()))
        named = list(zip(self._models, found, strict=True))
        if failed := [f"{name}: {failure}" for name, (failure, _) in named if failure]:
            raise EngineUnavailable("; ".join(failed), retry_after_seconds=5)
        return "; ".join(f"{name}: {degraded}" for name, (_, degraded) in named if degraded)


async def _found(model: ModelReadiness) -> tuple[str, str]:
    """Why a model is not served, and why only a stand-in serves it; empty where neither is so."""
    try:
        return "", await model.check()
    except ServiceError as error:
        return error.detail, ""


async def _probe(scheduler: Scheduler, layer: int) -> None:
    one = np.zeros(1, np.int64)
    task = TextTask(one, one, pooling=Pooling(layer, "cls"))
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            await scheduler.submit("encode", [task])
    except TimeoutError:
        raise EngineUnavailable(
            f"the engine did not answer a probe within {PROBE_SECONDS:g} s", retry_after_seconds=5
        ) from None
    except ServiceError as error:
        raise EngineUnavailable(
            f"the engine failed a probe: {error.detail}", retry_after_seconds=5
        ) from None
