"""Backlog of the tokenizer, or of pictures: waiting requests, threads, and predicted times.

Requests are finished one after another, slice by slice, by the virtual time at which they would
end if all clients shared the threads equally, and so did the requests of each client: a short text
goes before earlier long lists (after E. Friedman, S. Henderson, "Fairness and efficiency in web
server protocols", SIGMETRICS 2003; a request's place is fixed when it arrives).
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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

    caller: Call
    read: Callable[[slice], None]
    """Function that reads the inputs of a slice, in a thread."""
    slices: list[tuple[float, slice]]
    """Size and inputs of each slice that waits, last one first."""
    running: int
    """Number of slices that have not ended."""
    left: float
    """Size of the slices that wait."""
    end: float
    """Virtual time at which the request would end."""
    future: asyncio.Future[None]
    """Resolved when all slices have ended."""

    def fail(self, error: BaseException) -> None:
        """End the request with an error."""
        if not self.future.done():
            self.future.set_exception(error)


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
        self.threads = threads or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self.threads, pool, lower_priority)
        self._reason, self._owner = pool, owner
        self._slice_size, self._large_size = slice_size, large_size
        self._pace = pace
        """Mean seconds of a unit of size in one thread."""
        self._order: list[Waiting] = []
        """Requests by the virtual time at which they would end."""
        self._clients = Counter[str]()
        """Number of requests of each client in the order."""
        self._virtual_time = 0.0
        """Size that each client would have had done with equal sharing."""
        self._idle = self.threads
        self._closed = False

    def expect(self, size: int, seconds: float) -> None:
        """Initialise the mean by a measured size and its seconds."""
        self._pace = seconds / size

    def account(self, size: float, seconds: float) -> None:
        """Update the mean by a slice; an interrupted slice counts as a slow one."""
        if size:
            seconds = min(seconds / size, LARGEST_RATIO * self._pace)
            self._pace += WEIGHT * (seconds - self._pace)

    def seconds(self, client: str, size: float) -> float:
        """Return the predicted seconds until a request that arrives now is done."""
        end = self._end(client, size)
        size += sum(request.left for request in self._order if request.end <= end)
        return self._pace * size / self.threads

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
        size = sum(sizes)
        self._check(caller, self.seconds(caller.client, size))
        results: dict[int, list[Result]] = {}

        def read_part(part: slice) -> None:
            results[part.start] = read(inputs[part], part.start)

        parts = [*_slices(sizes, self._slice_size)]
        slices = [(sum(sizes[part]), part) for part in reversed(parts)]
        future, end = asyncio.get_running_loop().create_future(), self._end(caller.client, size)
        waiting = Waiting(caller, read_part, slices, len(parts), size, end, future)
        insort(self._order, waiting, key=attrgetter("end"))
        self._clients[caller.client] += 1
        try:
            self._start()
            await future
        finally:
            self._remove(waiting)
        if caller.reservation:
            caller.reservation.shrink(taken)
        return [result for part in parts for result in results[part.start]]

    def close(self) -> None:
        """Fail all waiting requests, and wait for the running slices."""
        self._closed = True
        for request in self._order:
            request.fail(_stopping())
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _end(self, client: str, size: float) -> float:
        """Return the virtual time at which a request of some size would end."""
        return self._virtual_time + size * (1 + self._clients[client])

    def _remove(self, request: Waiting) -> None:
        """Remove a request whose last slice was taken, or that has ended, if it is in the order."""
        if request in self._order:
            self._order.remove(request)
            self._clients -= Counter([request.caller.client])

    def _start(self) -> None:
        """Start slices of the first request in order, one for each idle thread."""
        while self._idle and self._order and not self._closed:
            request = self._order[0]
            if time.monotonic() >= request.caller.finish_by:
                request.fail(_late(1))
            if request.future.done():
                self._remove(request)
                continue
            size, part = request.slices.pop()
            request.left -= size
            self._virtual_time += size / len(self._clients)
            if not request.slices:
                self._remove(request)
            self._idle -= 1
            loop = request.future.get_loop()
            running = loop.run_in_executor(self._pool, self._timed, request.read, part, size)
            running.add_done_callback(functools.partial(self._ended, request, size))

    def _timed(self, read: Callable[[slice], None], part: slice, size: float) -> float:
        """Read a slice; return its seconds. Runs in a thread."""
        began = time.monotonic()
        read(part)
        seconds = time.monotonic() - began
        if size > self._large_size:
            release_memory()  # otherwise each thread keeps its memory
        return seconds

    def _ended(self, request: Waiting, size: float, running: asyncio.Future[float]) -> None:
        """Pass the outcome of a slice to its request, and start the next slices."""
        self._idle += 1
        if running.cancelled():
            request.fail(_stopping())
        elif error := running.exception():
            request.fail(error)
        else:
            self.account(size, running.result())
            request.running -= 1
            if not request.running and not request.future.done():
                request.future.set_result(None)
        self._start()

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
