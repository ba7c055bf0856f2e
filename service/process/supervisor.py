"""Supervisor of workers: accepts connections, hands them to workers, and restarts workers.

Each connection goes to the worker with the fewest connections.
docs/decisions/0009-whole-processes-on-one-port.md explains why neither the kernel distributes them
nor uvicorn supervises.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
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
from service.process import folder
from service.process.channel import BEAT_SECONDS, MESSAGE_BYTES, SIGNALS, Assignment, Message
from service.process.listener import Listener, ServiceManager, listening, service_manager
from service.settings import Settings, worker_environment
from service.system import logs, resources
from service.system.machine import threads_of_worker

LATE_BEATS = 3
"""Missed heartbeats after which a worker gets connections only if no other worker takes them."""
MISSED_BEATS = 10
"""Missed heartbeats after which a worker counts as hung and is killed. A busy machine delays
heartbeats, and the supervisor's count of them, by fractions of a second."""
LOADING_BEATS = 600
"""Missed heartbeats after which a loading worker, which sends none, is killed."""
BUS_ERROR = ": a file in use, as of a served artifact, was truncated or overwritten in place"


class WorkerHandle:
    """Worker process and the channel to it."""

    def __init__(
        self, index: int, process: asyncio.subprocess.Process, channel: socket.socket
    ) -> None:
        self.process = process
        self.started = time.monotonic()
        self.loaded = False
        self.gone = False
        self.settled = asyncio.Event()
        """Event set once the worker is loaded or gone."""
        self.connections = 0
        self.last_number = 0
        """Sequence number of the last connection handed to the worker."""
        self.index = index
        self._channel = channel
        self._reason = ""
        self._missed = 0
        """Missed heartbeats since the last message, not counted while this process is suspended."""
        loop = asyncio.get_running_loop()
        loop.add_reader(channel, self._receive)
        self._next_beat = loop.call_later(BEAT_SECONDS, self._beat)

    @property
    def serves(self) -> bool:
        """Whether the worker accepts connections."""
        return self.loaded and not self.gone

    @property
    def late(self) -> bool:
        """Whether the worker may hang, as its last messages are overdue."""
        return self._missed >= LATE_BEATS

    def give(self, connection: socket.socket, number: int) -> bool:
        """Hand a connection to the worker, and return whether the channel accepted it."""
        try:
            socket.send_fds(self._channel, [Message.CONNECTION], [connection.fileno()])
        except OSError:
            return False
        self.connections += 1
        self.last_number = number
        return True

    def drain(self) -> None:
        """Make the worker's readiness fail and its connections end; it still accepts new ones."""
        with contextlib.suppress(OSError):
            self._channel.send(Message.DRAIN)

    def finish(self) -> None:
        """Announce that no clients will follow: the worker ends after its pending work.

        Missed heartbeats are no longer counted.

        """
        self._next_beat.cancel()
        try:
            self._channel.send(Message.FINISH)
        except OSError:  # full, or closed
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill the worker.

        `os.kill` replaces `process.kill()`, which first polls the process and thereby consumes the
        exit code that asyncio waits for; asyncio would then report 255 with a warning.
        """
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)

    async def ended(self) -> str:
        """Wait until the worker ends, and return the reason in a line."""
        code = await self.process.wait()
        self._receive()
        how = f"with exit code {code}"
        if code < 0:
            cause = BUS_ERROR if -code == signal.SIGBUS else ""
            how = f"by signal {-code} ({signal.strsignal(-code)}{cause})"
        return self._reason or f"worker {self.index} ended {how}"

    def _receive(self) -> None:
        try:
            while message := self._channel.recv(MESSAGE_BYTES):
                self._read(message)
        except BlockingIOError:
            return
        except OSError:  # the worker was killed
            pass
        if not self.gone:
            self.gone = True
            self._next_beat.cancel()
            self.settled.set()
            asyncio.get_running_loop().remove_reader(self._channel)
            self._channel.close()

    def _beat(self) -> None:
        self._missed += 1
        if self._missed >= (MISSED_BEATS if self.loaded else LOADING_BEATS):
            seconds = self._missed * BEAT_SECONDS
            self._reason = f"worker {self.index} hangs: no heartbeat for {seconds:g} s"
            self.kill()
        else:
            self._next_beat = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def _read(self, message: bytes) -> None:
        self._missed = 0
        if message == Message.ALIVE:
            return
        if message == Message.LOADED:
            self.loaded = True
            self.settled.set()
        elif message.startswith(Message.CLOSED):
            self.connections -= int(message.removeprefix(Message.CLOSED))
        else:
            self._reason = message.decode()


LATE_SECONDS = 15
"""Time after the end of the drain at which a worker that still runs is killed."""
STEADY_SECONDS = 10.0
"""Run time from which an ended worker is restarted without a pause."""
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.5, 8.0
MOST_FAILED_STARTS = 5
"""Maximum number of consecutive failed starts while no worker serves."""

_log = logging.getLogger("headscope")


def serve(settings: Settings, artifacts: Sequence[Artifact]) -> int:
    """Serve with `settings.workers` processes until a signal to stop, and return the exit code."""
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
        self._listeners = [Listener(one, self._give, self._settings) for one in sockets]
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
        clients = [listener for listener in self._listeners if not listener.scraped]
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
