"""Backlog of the tokenizer, or of pictures: waiting requests, threads, and predicted times.

Requests are finished one after another, slice by slice, by the virtual time at which they would
end if all clients shared the threads equally, and so did the requests of each client: a short text
goes before earlier long lists (after E. Friedman, S. Henderson, "Fairness and efficiency in web
server protocols", SIGMETRICS 2003; a request's place is fixed when it arrives).
"""

from __future__ import annotations

import asyncio
import os
import time
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TypeVar

from service.errors import DeadlinePassed, EngineUnavailable, Overloaded, ServiceError
from service.scheduler.call import Call, retry_after
from service.system.resources import lower_priority, release_memory

SLICE_CHARACTERS = 2**14
"""Number of characters of a slice, which takes some 20 ms; a single input may have more. The
deadline is checked before each slice."""
LARGE_CHARACTERS = 2**17
"""Number of characters of a slice for which the tokenizer takes some 75 MB of memory. Memory of
larger slices is returned to the system at once."""
MAX_REQUESTS = 1024
"""Maximum number of waiting requests."""
WEIGHT, LARGEST_RATIO = 0.1, 3.0
"""Weight of the last slice in the mean seconds of a character, and the largest ratio of the slice's
seconds to the mean, to which larger ratios are clipped."""

Given = TypeVar("Given")
Result = TypeVar("Result")


@dataclass(eq=False, slots=True)
class Waiting:
    """Request with slices that no thread has taken yet."""

    client: str
    end: float
    """Virtual time at which the request would end."""
    left: float
    """Size of the slices that wait."""
    running: int = 0
    """Number of slices that are being read."""
    error: BaseException | None = None
    """Error that ends the request."""
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait until a condition holds, which is checked when the request is woken."""
        while not (self.error or ready()):
            self.woken.clear()
            await self.woken.wait()
        if self.error:
            raise self.error


class Backlog:
    """Waiting requests and threads of a tokenizer or of pictures, for use on the event loop."""

    def __init__(
        self,
        threads: int | None = None,
        *,
        pool: str = "tokenizer",
        owner: str = "the tokenizer",
        slice_size: int = SLICE_CHARACTERS,
        large_size: int = LARGE_CHARACTERS,
        pace: float = 1e-6,
    ) -> None:
        """Initialise without a thread; `pace` is an estimate before any measurement.

        `pool` is the name of the threads and the reason of refusals, `owner` their name in errors.
        """
        self.threads = self._idle = threads or len(os.sched_getaffinity(0))
        self.pace = pace
        """Mean seconds of a unit of size in one thread."""
        self._pool = ThreadPoolExecutor(self.threads, pool, lower_priority)
        self._reason, self._owner = pool, owner
        self._slice_size, self._large_size = slice_size, large_size
        self._order: list[Waiting] = []
        """Requests by the virtual time at which they would end."""
        self._virtual_time = 0.0
        """Size that each client would have had done with equal sharing."""
        self._closed = False

    def account(self, size: float, seconds: float) -> None:
        """Update the mean by a slice; an interrupted slice counts as a slow one."""
        if size:
            seconds = min(seconds / size, LARGEST_RATIO * self.pace)
            self.pace += WEIGHT * (seconds - self.pace)

    def seconds(self, client: str, size: float) -> float:
        """Return the predicted seconds until a request that arrives now is done."""
        end = self._end(client, size)
        size += sum(request.left for request in self._order if request.end <= end)
        return self.pace * size / self.threads

    async def run(
        self,
        caller: Call,
        inputs: Sequence[Given],
        sizes: Sequence[float],
        read: Callable[[Sequence[Given], int], list[Result]],
        memory: Sequence[int] = (),
    ) -> list[Result]:
        """Return the result of each input of a request.

        `read` is called in a thread with some inputs and the index of the first. `memory` has the
        bytes that it takes for each input beside the result, which are reserved meanwhile.
        Cancelling the call ends it after the running slices.
        """
        taken = sum(sorted(memory)[-self.threads :])  # by inputs that are read at once
        if caller.reservation:
            caller.reservation.grow(taken)
        total = sum(sizes)
        self._check(caller, self.seconds(caller.client, total))
        request = Waiting(caller.client, self._end(caller.client, total), total)
        started: list[asyncio.Future[tuple[list[Result], float]]] = []
        insort(self._order, request, key=attrgetter("end"))
        try:
            for part in _slices(sizes, self._slice_size):
                await request.until(lambda: self._idle > 0 and self._order[0] is request)
                if time.monotonic() >= caller.finish_by:
                    raise _late(1)
                job, size = partial(read, inputs[part], part.start), sum(sizes[part])
                started.append(self._start(request, job, size))
        finally:
            self._order.remove(request)
            self._wake()
        await request.until(lambda: not request.running)
        if caller.reservation:
            caller.reservation.shrink(taken)
        return [result for ended in started for result in ended.result()[0]]

    def close(self) -> None:
        """Fail all waiting requests, and wait for the running slices."""
        self._closed = True
        for request in self._order:
            request.error = _stopping()
            request.woken.set()
        self._pool.shutdown()

    def _end(self, client: str, size: float) -> float:
        """Return the virtual time at which a request of some size would end."""
        others = sum(request.client == client for request in self._order)
        return self._virtual_time + size * (1 + others)

    def _wake(self) -> None:
        """Wake the first request in order, which alone may start slices."""
        if self._order:
            self._order[0].woken.set()

    def _start(
        self, request: Waiting, job: Callable[[], list[Result]], size: float
    ) -> asyncio.Future[tuple[list[Result], float]]:
        """Start a slice of the first request in an idle thread."""
        self._idle -= 1
        self._virtual_time += size / len({each.client for each in self._order})
        request.left -= size
        request.running += 1
        loop = asyncio.get_running_loop()
        started = loop.run_in_executor(self._pool, self._timed, job, size)
        started.add_done_callback(partial(self._ended, request, size))
        return started

    def _timed(self, job: Callable[[], list[Result]], size: float) -> tuple[list[Result], float]:
        """Return the results of a slice, and its seconds. Runs in a thread."""
        began = time.monotonic()
        results = job()
        seconds = time.monotonic() - began
        if size > self._large_size:
            release_memory()  # otherwise each thread keeps its memory
        return results, seconds

    def _ended(
        self, request: Waiting, size: float, ended: asyncio.Future[tuple[list[Result], float]]
    ) -> None:
        """Pass the outcome of a slice to its request, and let the first request go on."""
        self._idle += 1
        request.running -= 1
        if error := ended.exception():
            request.error = error
        else:
            self.account(size, ended.result()[1])
        request.woken.set()
        self._wake()

    def _check(self, caller: Call, seconds: float) -> None:
        """Raise if a request cannot be done before its deadline, or if too many wait."""
        if self._closed:
            raise _stopping()
        owner, left = self._owner, caller.finish_by - time.monotonic()
        if left <= 0:
            raise _late(retry_after(seconds))
        if len(self._order) >= MAX_REQUESTS:
            why = f"{len(self._order)} requests wait for {owner}, which are the most"
        elif seconds > left:
            why = f"{owner} would take about {seconds:.1f} s, and {left:.1f} s are left"
        else:
            return
        raise Overloaded(why, retry_after_seconds=retry_after(seconds), reason=self._reason)


def _slices(sizes: Sequence[float], most: int) -> Iterator[slice]:
    """Yield slices of consecutive inputs of at most `most` size together."""
    start, size = 0, 0.0
    for index, own in enumerate(sizes):
        if index > start and size + own > most:
            yield slice(start, index)
            start, size = index, 0.0
        size += own
    yield slice(start, len(sizes))


def _late(seconds: int) -> ServiceError:
    why = "the deadline came before all inputs were read"
    return DeadlinePassed(why, retry_after_seconds=seconds)


def _stopping() -> ServiceError:
    return EngineUnavailable("the service is stopping", retry_after_seconds=5)
