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
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Generic, TypeVar

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


@dataclass(frozen=True)
class BacklogProfile:
    """Sizes of the slices of a backlog's work, its first pace, and its words in errors."""

    pool: str
    """Name of the threads, and the reason of refusals."""
    owner: str
    """Owner of the waiting requests, in errors."""
    done: str
    """Participle of the work, in errors."""
    slice_size: int
    """Size of the inputs of a slice together; see `SLICE_CHARACTERS`."""
    large_size: int
    """Size from which on a slice's memory is returned at once; see `LARGE_CHARACTERS`."""
    pace: float
    """Seconds of a unit of size in one thread, an estimate before they are measured."""


OF_TEXTS = BacklogProfile(
    "tokenizer", "the tokenizer", "tokenised", SLICE_CHARACTERS, LARGE_CHARACTERS, 1e-6
)

Given = TypeVar("Given")
Result = TypeVar("Result")


@dataclass(eq=False)
class TokenizerWork(Generic[Given, Result]):
    """Inputs of a request, and the function that tokenises them or prepares their pixels."""

    caller: Call
    inputs: Sequence[Given]
    sizes: Sequence[float]
    """Number of characters of each input that are tokenised; of a picture, see `pictures`."""
    tokenize: Callable[[Sequence[Given], int], list[Result]]
    """Function of some inputs and the index of the first, which returns a result for each."""
    memory: Sequence[int] = ()
    """Bytes that reading each input takes beside its result."""
    end: float = field(default=0.0, init=False)
    """Virtual time at which the work would end."""
    left: float = field(default=0.0, init=False)
    """Size of the slices that no thread has taken yet."""
    slices: list[slice] = field(default_factory=list, init=False)
    """Slices that no thread has taken yet, last one first."""
    results: dict[int, list[Result]] = field(default_factory=dict, init=False)
    """Results of each slice by the index of its first input."""
    future: asyncio.Future[None] = field(init=False)
    """Resolved when all inputs are tokenised."""

    @property
    def done(self) -> int:
        """Number of inputs that are tokenised."""
        return sum(map(len, self.results.values()))

    def run(self, part: slice, large_size: int) -> float:
        """Tokenise a slice; return its seconds. Runs in a thread."""
        began = time.monotonic()
        self.results[part.start] = self.tokenize(self.inputs[part], part.start)
        seconds = time.monotonic() - began
        if sum(self.sizes[part]) > large_size:
            release_memory()  # otherwise each thread keeps its memory
        return seconds

    def fail(self, error: BaseException) -> None:
        """End the work with an error."""
        if not self.future.done():
            self.future.set_exception(error)


class Backlog:
    """Waiting requests and threads of a tokenizer or of pictures, for use on the event loop."""

    def __init__(self, threads: int | None = None, profile: BacklogProfile = OF_TEXTS) -> None:
        self.threads = threads or len(os.sched_getaffinity(0))
        self._profile = profile
        self._pool = ThreadPoolExecutor(self.threads, profile.pool, lower_priority)
        self._pace = profile.pace
        """Mean seconds of a unit of size in one thread."""
        self._order: list[TokenizerWork[Any, Any]] = []
        """Work with slices that wait, by the virtual time at which it would end."""
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
        size += sum(work.left for work in self._order if work.end <= end)
        return self._pace * size / self.threads

    async def run(self, work: TokenizerWork[Given, Result]) -> list[Result]:
        """Return the result for each input of a request, and reserve the memory meanwhile.

        Cancelling the call ends it after the running slices.
        """
        client, reservation, size = work.caller.client, work.caller.reservation, sum(work.sizes)
        memory = sum(sorted(work.memory)[-self.threads :])  # of inputs that are read at once
        if reservation:
            reservation.grow(memory)
        self._check(work, self.seconds(client, size))
        work.future = asyncio.get_running_loop().create_future()
        work.slices = [*_slices(work.sizes, self._profile.slice_size)][::-1]
        work.left, work.end = size, self._end(client, size)
        insort(self._order, work, key=attrgetter("end"))
        self._clients[client] += 1
        try:
            self._start()
            await work.future
        finally:
            self._remove(work)
        if reservation:
            reservation.shrink(memory)
        return [result for _, results in sorted(work.results.items()) for result in results]

    def close(self) -> None:
        """Fail all waiting requests, and wait for the running slices."""
        self._closed = True
        for work in self._order:
            work.fail(_stopping())
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _end(self, client: str, size: float) -> float:
        """Return the virtual time at which a request of some size would end."""
        return self._virtual_time + size * (1 + self._clients[client])

    def _remove(self, work: TokenizerWork[Any, Any]) -> None:
        """Remove work from the order, if it is there: its last slice was taken, or it has ended."""
        if work in self._order:
            self._order.remove(work)
            self._clients -= Counter([work.caller.client])

    def _start(self) -> None:
        """Start slices of the first request in order, one for each idle thread."""
        while self._idle and self._order and not self._closed:
            work = self._order[0]
            if time.monotonic() >= work.caller.finish_by:
                work.fail(self._late(work, 1))
            if work.future.done():
                self._remove(work)
                continue
            part = work.slices.pop()
            size = sum(work.sizes[part])
            work.left -= size
            self._virtual_time += size / len(self._clients)
            if not work.slices:
                self._remove(work)
            self._idle -= 1
            loop, large_size = work.future.get_loop(), self._profile.large_size
            running = loop.run_in_executor(self._pool, work.run, part, large_size)
            running.add_done_callback(functools.partial(self._ended, work, size))

    def _ended(
        self, work: TokenizerWork[Any, Any], size: float, running: asyncio.Future[float]
    ) -> None:
        """Pass the outcome of a slice to its work, and start the next slices."""
        self._idle += 1
        if running.cancelled():
            work.fail(_stopping())
        elif error := running.exception():
            work.fail(error)
        else:
            self.account(size, running.result())
            if work.done == len(work.inputs) and not work.future.done():
                work.future.set_result(None)
        self._start()

    def _check(self, work: TokenizerWork[Any, Any], seconds: float) -> None:
        """Raise if a request cannot be done before its deadline, or if too many wait."""
        if self._closed:
            raise _stopping()
        owner, left = self._profile.owner, work.caller.finish_by - time.monotonic()
        if left <= 0:
            raise self._late(work, retry_after(seconds))
        if len(self._order) >= MAX_REQUESTS:
            why = f"{len(self._order)} requests wait for {owner}, which are the most"
        elif seconds > left:
            why = f"{owner} would take about {seconds:.1f} s, and {left:.1f} s are left"
        else:
            return
        raise Overloaded(why, retry_after_seconds=retry_after(seconds), reason=self._profile.pool)

    def _late(self, work: TokenizerWork[Any, Any], retry_after_seconds: int) -> ServiceError:
        why = f"{work.done} of {len(work.inputs)} inputs were {self._profile.done}"
        return DeadlinePassed(
            f"the deadline came when {why}", retry_after_seconds=retry_after_seconds
        )


def _slices(sizes: Sequence[float], most: int) -> Iterator[slice]:
    """Yield slices of consecutive inputs of at most `most` size together."""
    start, size = 0, 0.0
    for index, own in enumerate(sizes):
        if index > start and size + own > most:
            yield slice(start, index)
            start, size = index, 0.0
        size += own
    yield slice(start, len(sizes))


def _stopping() -> ServiceError:
    return EngineUnavailable("the service is stopping", retry_after_seconds=5)
