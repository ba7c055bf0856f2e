"""Live verification: PyTorch computes a share of the served batches again for comparison."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

import numpy as np

from model.artifact.manifest import Manifest, measured, passed_uses
from model.artifact.signature import ATTENTION_OF
from model.errors import DeviceLostError
from model.numerics.comparison import Difference, Floats, Key, Kind, difference, tolerances_of
from model.numerics.pooling import l2_normalize
from service.engines.contract import DecomposeTask, MapsTask, Output, Task, TextTask
from service.errors import ServiceError
from service.scheduler.outputs import requested
from service.scheduler.scheduler import Scheduler
from service.telemetry.metrics import ModelMetrics

_log = logging.getLogger("headscope")


class LiveVerification:
    """Comparison of a share of the batches with PyTorch, one at a time, without delaying replies.

    PyTorch computes maps from the served input of the same layer. Errors therefore do not
    accumulate over layers, and the tolerances of an encoder with few layers apply.
    """

    def __init__(
        self,
        share: float,
        reference: Callable[[], Awaitable[Scheduler]],
        manifest: Manifest,
        metrics: ModelMetrics,
        label: str = "",
    ) -> None:
        """Set the verification up; `open` starts it.

        A share of 0.01 is every hundredth batch; batches are skipped while another is compared.
        Tensors of a use that failed its verification are not compared. `label` is the prefix of log
        messages, the model's name if there are several.
        """
        self.problem = ""
        """Description of the first difference beyond tolerance; or empty."""
        self.worst: dict[Kind, float] = {}
        """Largest difference of each kind so far."""
        self._share = share
        self._reference = reference
        usual = tolerances_of(manifest.precision, layers=0, decoder_layers=1)
        self._tolerances = {**usual, **measured(manifest)}
        self._uses = passed_uses(manifest)
        self._metrics = metrics
        self._label = label
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy = True
        """Whether batches are skipped now."""
        self._owed = 0.0
        """Number of batches due for comparison, at most one."""
        self._comparing: asyncio.Task[None] | None = None

    def inspect(self, tasks: Sequence[Task], outputs: Sequence[Output]) -> None:
        """Consider a computed batch for comparison; called in a worker thread.

        Decompositions are skipped, as they are in float32 at any precision.
        """
        if any(isinstance(task, DecomposeTask) for task in tasks):
            return
        self._owed = min(self._owed + self._share, 1.0)
        if self._busy or self._loop is None or self._owed < 1.0:
            return
        self._owed -= 1.0
        self._busy = True
        self._loop.call_soon_threadsafe(self._begin, tasks, outputs)

    def open(self) -> None:
        """Start the verification; comparisons run on the current event loop."""
        self._loop = asyncio.get_running_loop()
        self._busy = False

    async def close(self) -> None:
        """Stop the verification, and cancel a running comparison."""
        self._busy = True
        if self._comparing:
            self._comparing.cancel()
            await asyncio.gather(self._comparing, return_exceptions=True)

    def _begin(self, tasks: Sequence[Task], outputs: Sequence[Output]) -> None:
        self._comparing = asyncio.create_task(self._compare(tasks, outputs))

    async def _compare(self, tasks: Sequence[Task], outputs: Sequence[Output]) -> None:
        result = "unknown"
        try:
            reference = await self._reference()
            computed = await reference.submit("attention", tasks, resumed=True)
            expected = [done.value for done in computed]
            worst = await asyncio.to_thread(self._differences, tasks, expected, outputs)
            result = "passed" if all(kind.passed for kind in worst.values()) else "failed"
            self._report(worst)
        except (ServiceError, DeviceLostError) as error:
            _log.warning("%sa batch could not be verified: %s", self._label, error)
        finally:
            self._metrics.count("verified_batches", result)
            self._busy = False

    def _differences(
        self, tasks: Sequence[Task], expected: Sequence[Output], served: Sequence[Output]
    ) -> dict[Kind, Difference]:
        worst: dict[Kind, Difference] = {}
        for task, reference_output, output in zip(tasks, expected, served, strict=True):
            pairs = zip(_tensors(task, reference_output), _tensors(task, output), strict=True)
            for (kind, reference), (_, candidate) in pairs:
                if Key(kind).use in self._uses:
                    new = difference(reference, candidate, self._tolerances[kind])
                    worst[kind] = worst[kind].worst(new) if kind in worst else new
        return worst

    def _report(self, worst: dict[Kind, Difference]) -> None:
        for kind, largest in worst.items():
            self.worst[kind] = max(self.worst.get(kind, 0.0), largest.max_abs_diff)
            if not largest.passed:
                problem = (
                    f"live verification failed: {kind}, max abs diff {largest.max_abs_diff:.1e}, "
                    f"min cosine {largest.min_cosine:.6f}"
                )
                _log.error("%s%s", self._label, problem)
                self.problem = self.problem or problem


def _tensors(task: Task, output: Output) -> Iterator[tuple[Kind, Floats]]:
    """Yield the tensors that a task requests, with their kinds."""
    if isinstance(task, MapsTask):
        yield ATTENTION_OF[task.kind], requested(output.maps)
    elif isinstance(task, TextTask):
        for state in (*output.hidden, *output.map_states):
            yield "hidden", np.asarray(state)
        if task.pooling:
            yield "pooled", l2_normalize(requested(output.pooled))
        if task.scores:
            yield "task", requested(output.scores)
        if task.target:
            target = requested(output.target)
            yield from (("decoder_hidden", state) for state in target.hidden)
            yield from (("cross_queries", queries) for queries in target.cross)
            if task.target.logprobs:
                yield "logprobs", requested(target.logprobs)
