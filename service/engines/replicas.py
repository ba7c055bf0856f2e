"""Engine of one replica on each of several devices, each in a child process.

A device that is lost is lost for its process alone, and the other replicas go on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from service.engines.contract import DeviceState, Engine, Output, Task
from service.errors import EngineFailed, EngineOutOfMemory, EngineUnavailable

SUSPICIOUS_FAILURES = 3
"""Number of consecutive failed batches after which a replica is tried, and lost if it fails."""
Start = Callable[[int], Engine]
"""Function that starts the engine of a device."""
Trial = Callable[[Engine], None]
"""Function that raises if an engine does not work."""
_log = logging.getLogger("headscope")


@dataclass(eq=False)
class _Replica:
    """Engine of a device, and its batches."""

    engine: Engine
    tokens: int = 0
    """Tokens of the batches in flight."""
    failures: int = 0
    """Number of failed batches since the last computed one."""
    lost: bool = False


class Replicas(Engine):
    """Engine that gives each batch to the device with the fewest tokens in flight."""

    def __init__(self, engines: Mapping[int, Engine], trial: Trial) -> None:
        """Compute by the engine of each device, which is tried once several batches have failed."""
        first = next(iter(engines.values()))
        self.name, self.provider = first.name, first.provider
        self.hidden_size, self.batch_tokens = first.hidden_size, first.batch_tokens
        self.attention_kernels = first.attention_kernels
        self.concurrency = sum(engine.concurrency for engine in engines.values())
        self._replicas = {device: _Replica(engine) for device, engine in engines.items()}
        self._trial = trial
        self._lock = threading.Lock()

    @classmethod
    def start(cls, devices: Sequence[int], start: Start, trial: Trial) -> Replicas:
        """Start and try the engines of all devices at once; if one fails, close the others."""
        with contextlib.ExitStack() as undo, ThreadPoolExecutor(len(devices)) as threads:

            def tried(device: int) -> Engine:
                engine = start(device)
                undo.callback(engine.close)
                trial(engine)
                return engine

            started = [threads.submit(tried, device) for device in devices]
            engines = [engine.result() for engine in started]
            undo.pop_all()
        return cls(dict(zip(devices, engines, strict=True)), trial)

    @property
    def alive(self) -> bool:
        """Whether the replica of any device is alive."""
        return bool(self._live())

    @property
    def devices(self) -> list[DeviceState]:
        """State of each device."""
        self._live()
        return [
            DeviceState(device, "lost" if replica.lost else "serving", replica.tokens)
            for device, replica in self._replicas.items()
        ]

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        """Compute a batch on the device with the fewest tokens in flight.

        The batches in flight on a device that is lost fail: one of them may be the cause, and would
        take the next device along.
        """
        tokens = sum(task.tokens for task in tasks)
        with self._lock:
            live = self._live()
            if not live:
                raise EngineUnavailable("all devices are lost", retry_after_seconds=5)
            replica = min(live, key=lambda replica: replica.tokens)
            replica.tokens += tokens
        try:
            outputs = replica.engine.run(tasks)
            replica.failures = 0
        except (EngineFailed, EngineOutOfMemory):
            self._suspect(replica)
            raise
        finally:
            with self._lock:
                replica.tokens -= tokens
        return outputs

    def warm_up(self, batch_tokens: int, longest: int) -> None:
        """Warm up all devices at once."""
        with ThreadPoolExecutor(len(self._replicas)) as threads:
            engines = [replica.engine for replica in self._replicas.values()]
            list(threads.map(lambda engine: engine.warm_up(batch_tokens, longest), engines))

    def release_memory(self) -> None:
        """Release the memory of all live devices."""
        for replica in self._live():
            with contextlib.suppress(EngineUnavailable):  # lost meanwhile
                replica.engine.release_memory()

    def close(self) -> None:
        """Close the engines of all devices."""
        for replica in self._replicas.values():
            replica.engine.close()

    def _live(self) -> list[_Replica]:
        """Return the live replicas; log each newly lost one."""
        for device, replica in self._replicas.items():
            if not replica.lost and not replica.engine.alive:
                replica.lost = True
                _log.error("device %d is lost", device)
        return [replica for replica in self._replicas.values() if not replica.lost]

    def _suspect(self, replica: _Replica) -> None:
        """Count a failed batch; try the replica after several of them, and close it if it fails.

        A device that fails each batch at once would otherwise get most of them.
        """
        replica.failures += 1
        if replica.failures % SUSPICIOUS_FAILURES:
            return
        try:
            self._trial(replica.engine)
        except Exception as error:  # a failed engine may raise anything
            _log.error("a device failed %d batches and a trial: %s", replica.failures, error)
            replica.lost = True
            replica.engine.close()
