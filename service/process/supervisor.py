"""Supervisor of workers: accepts connections, hands them to workers, and restarts workers.

Each connection goes to the worker with the fewest connections.
docs/decisions/0009-whole-processes-on-one-port.md explains why neither the kernel distributes them
nor uvicorn supervises.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.multiprocess import mark_process_dead

from model.artifact.manifest import Artifact
from service.errors import EngineUnavailable
from service.models.banner import address_line
from service.process import folder
from service.process.channel import MESSAGE_BYTES, SIGNALS, Assignment
from service.process.handle import WorkerHandle
from service.process.listener import Listener
from service.process.systemd import ServiceManager, listening, service_manager
from service.settings import Settings, worker_environment
from service.system import logs, resources
from service.system.machine import threads_of_worker

LATE_SECONDS = 15
"""Time after the end of the drain at which a worker that still runs is killed."""
STEADY_SECONDS = 10.0
"""Run time from which an ended worker is restarted without a pause."""
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.5, 8.0
MOST_FAILED_STARTS = 5
"""Maximum number of consecutive failed starts while no worker serves."""

_log = logging.getLogger("headscope")


def serve(settings: Settings, artifacts: Sequence[Artifact]) -> int:
    """Serve with `settings.workers` processes until a signal to stop, and return the exit code.

    Raises:
        ServiceError: the workers cannot be started.
        OSError: a port cannot be bound.
        ValueError: systemd passes something other than a listening socket.

    """
    logs.configure(settings.log_level, settings.log_format)
    resources.end_start()
    manager = service_manager()
    manager.status("Loading the models in all workers")
    with listening(settings) as (found, sockets), folder.made() as shared:
        return asyncio.run(Supervisor(found, artifacts, shared, manager).run(sockets))


class Supervisor:
    """Supervisor that starts the workers, opens the port once all are loaded, and stops them."""

    def __init__(
        self,
        settings: Settings,
        artifacts: Sequence[Artifact],
        folder: Path,
        manager: ServiceManager | None = None,
    ) -> None:
        threads = threads_of_worker(settings.threads, settings.workers)
        self._settings = settings.model_copy(update={"threads": threads, "config": None})
        self._artifacts = [(artifact.folder, artifact.sha256) for artifact in artifacts]
        self._folder = folder
        self._manager = manager or ServiceManager()
        self._workers: dict[int, WorkerHandle] = {}
        self._listeners: list[Listener] = []
        self._failed_starts = 0
        self._given = 0

    async def run(self, sockets: Sequence[socket.socket]) -> int:
        """Serve until a signal, and return 0 if every worker then finished its pending requests."""
        serving = asyncio.create_task(self._serve(sockets))

        def stop(number: signal.Signals) -> None:
            asked_before = not serving.cancel()
            if asked_before and number != signal.SIGHUP:  # a closing terminal may send several
                self._kill()

        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as SIGHUP is under `nohup`
                asyncio.get_running_loop().add_signal_handler(number, stop, number)
        await asyncio.wait([serving])
        finished = await self._finish()
        if not serving.cancelled():
            await serving  # raises its error
        return 0 if finished else 1

    async def _serve(self, sockets: Iterable[socket.socket]) -> None:
        indices = range(self._settings.workers)
        await _together(self._start(index) for index in indices)
        self._listeners = [Listener(listener, self._give) for listener in sockets]
        for listener in sockets:
            host, port, *_ = listener.getsockname()
            _log.info("%s", address_line(self._settings, host, port))
        _log.info("%d workers", len(indices))
        self._manager.ready(f"Serving by {len(indices)} workers")
        self._manager.watch(self._answers)
        await _together(self._keep(index) for index in indices)

    def _answers(self) -> bool:
        """Return whether a worker serves that does not hang."""
        return any(worker.serves and not worker.late for worker in self._workers.values())

    def _give(self, connection: socket.socket) -> bool:
        """Hand a connection to the worker with the fewest connections, in turn among equals.

        Workers that may hang come last.
        """
        self._given += 1
        workers = [worker for worker in self._workers.values() if worker.serves]
        workers.sort(key=lambda worker: (worker.late, worker.connections, worker.last_number))
        return any(worker.give(connection, self._given) for worker in workers)

    async def _start(self, index: int) -> None:
        worker = await self._launch(index, restarted=False)
        await worker.settled.wait()
        if not worker.loaded:
            raise EngineUnavailable(await worker.ended())

    async def _keep(self, index: int) -> None:
        """Restart a worker whenever it ends."""
        pause, worker = 0.0, self._workers[index]
        while True:
            reason = await worker.ended()
            mark_process_dead(index, str(self._folder))  # type: ignore[no-untyped-call]
            others_serve = any(other.serves for other in self._workers.values())
            if worker.loaded or others_serve:
                self._failed_starts = 0
            else:
                self._failed_starts += 1
                if self._failed_starts == MOST_FAILED_STARTS:
                    raise EngineUnavailable(f"workers repeatedly fail to start: {reason}")
            steady = time.monotonic() - worker.started > STEADY_SECONDS
            pause = 0.0 if steady else min(max(FIRST_PAUSE_SECONDS, 2 * pause), MOST_PAUSE_SECONDS)
            _log.error("%s; restarting it in %g s", reason, pause)
            await asyncio.sleep(pause)
            worker = await self._launch(index, restarted=True)

    async def _launch(self, index: int, *, restarted: bool) -> WorkerHandle:
        assignment = Assignment(
            settings=self._settings,
            artifacts=self._artifacts,
            folder=self._folder,
            index=index,
            restarted=restarted,
        )
        content = assignment.model_dump_json().encode()
        if len(content) > MESSAGE_BYTES:
            raise EngineUnavailable(
                f"the settings take {len(content)} bytes, and a worker takes {MESSAGE_BYTES}: "
                "shorten the prompts of the models, or give keys by --keys-file"
            )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        ours.send(content)
        with theirs, _blocked(SIGNALS):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "service.process.worker", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=worker_environment(self._folder),
            )
        worker = self._workers[index] = WorkerHandle(index, process, ours)
        return worker

    async def _finish(self) -> bool:
        """Let the workers finish all accepted requests, and return whether all did."""
        self._manager.stopping("Stopping after the last requests")
        serving = [worker for worker in self._workers.values() if worker.serves]
        for worker in set(self._workers.values()).difference(serving):
            worker.kill()
        for worker in serving:
            worker.drain()
        if serving:
            await asyncio.sleep(self._settings.drain_delay_seconds)
        metrics_port = self._settings.metrics_port
        clients = [listener for listener in self._listeners if listener.port != metrics_port]
        for listener in clients:
            listener.close()
        for worker in serving:
            worker.finish()
        endings = [asyncio.create_task(self._gone(worker)) for worker in serving]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_seconds + LATE_SECONDS):
                await asyncio.gather(*endings)
        for listener in set(self._listeners).difference(clients):
            listener.close()
        self._kill()
        for worker in self._workers.values():  # or asyncio warns of processes that outlive its loop
            await worker.process.wait()
        return all(worker.process.returncode == 0 for worker in serving)

    async def _gone(self, worker: WorkerHandle) -> None:
        """Wait for a worker's end, and then stop counting its gauges."""
        await worker.process.wait()
        mark_process_dead(worker.index, str(self._folder))  # type: ignore[no-untyped-call]

    def _kill(self) -> None:
        for worker in self._workers.values():
            worker.kill()


@contextlib.contextmanager
def _blocked(signals: Iterable[signal.Signals]) -> Iterator[None]:
    """Block signals while the block runs, so that child processes inherit them blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


async def _together(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run jobs concurrently; the first error cancels the others, and is raised alone."""
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
