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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

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
Kind = Literal["texts", "pieces", "pictures", "heads"]
"""Kind of work: token ids alone, or tokens with their offsets, which take longer; pixels of
pictures, or the heads of their files alone."""


@dataclass(frozen=True)
class BacklogProfile:
    """Sizes of the slices of a backlog's work, its first pace, and its words in errors."""

    pool: str
    """Name of the threads, and the reason of refusals."""
    owner: str
    verb: str
    done: str
    """Owner of the waiting requests, verb and participle of their work, in errors."""
    slice_size: int
    """Size of the inputs of a slice together; see `SLICE_CHARACTERS`."""
    large_size: int
    """Size from which on a slice's memory is returned at once; see `LARGE_CHARACTERS`."""
    pace: Mapping[Kind, float]
    """Seconds of a unit of size in one thread, an estimate before they are measured."""


OF_TEXTS = BacklogProfile(
    "tokenizer",
    "the tokenizer",
    "tokenise",
    "tokenised",
    SLICE_CHARACTERS,
    LARGE_CHARACTERS,
    {"texts": 1e-6, "pieces": 1e-6},
)

Given = TypeVar("Given")
Result = TypeVar("Result")


@dataclass(eq=False)
class TokenizerWork(Generic[Given, Result]):
    """Inputs of a request, and the function that tokenises them or prepares their pixels."""

    caller: Call
    inputs: Sequence[Given]
    sizes: Sequence[int]
    """Number of characters of each input that are tokenised; of a picture, see `pictures`."""
    tokenize: Callable[[Sequence[Given], int], list[Result]]
    """Function of some inputs and the index of the first, which returns a result for each."""
    kind: Kind = "texts"
    end: float = field(default=0.0, init=False)
    """Virtual time at which the work would end."""
    left: float = field(default=0.0, init=False)
    """Seconds of the slices that no thread has taken yet."""
    slices: list[tuple[slice, float]] = field(default_factory=list, init=False)
    """Slices that no thread has taken yet, last one first, and their predicted seconds."""
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
        self._pace = dict(profile.pace)
        """Mean seconds of a unit of size in one thread."""
        self._order: list[TokenizerWork[Any, Any]] = []
        """Work with slices that wait, by the virtual time at which it would end."""
        self._clients = Counter[str]()
        """Number of requests of each client in the order."""
        self._virtual_time = 0.0
        """Seconds that each client would have had with equal sharing."""
        self._waiting = 0
        self._idle = self.threads
        self._closed = False

    def expect(self, kind: Kind, size: int, seconds: float) -> None:
        """Initialise the mean by a measured size and its seconds."""
        self._pace[kind] = seconds / size

    def account(self, kind: Kind, size: int, seconds: float) -> None:
        """Update the mean by a slice; an interrupted slice counts as a slow one."""
        if size:
            mean = self._pace[kind]
            self._pace[kind] += WEIGHT * (min(seconds / size, LARGEST_RATIO * mean) - mean)

    def seconds(self, client: str, size: int, kind: Kind = "texts") -> float:
        """Return the predicted seconds until a request that arrives now is done."""
        own = self._pace[kind] * size
        end = self._end(client, own)
        return (own + sum(work.left for work in self._order if work.end <= end)) / self.threads

    async def run(self, work: TokenizerWork[Given, Result]) -> list[Result]:
        """Return the result for each input of a request.

        Cancelling the call ends it after the running slices.
        """
        client, pace = work.caller.client, self._pace[work.kind]
        self._check(work, self.seconds(client, sum(work.sizes), work.kind))
        work.future = asyncio.get_running_loop().create_future()
        parts = [*_slices(work.sizes, self._profile.slice_size)]
        work.slices = [(part, pace * sum(work.sizes[part])) for part in reversed(parts)]
        work.left = pace * sum(work.sizes)
        work.end = self._end(client, work.left)
        insort(self._order, work, key=attrgetter("end"))
        self._clients[client] += 1
        self._waiting += 1
        try:
            self._start()
            await work.future
        finally:
            self._waiting -= 1
            self._remove(work)
        return [result for _, results in sorted(work.results.items()) for result in results]

    def close(self) -> None:
        """Fail all waiting requests, and wait for the running slices."""
        self._closed = True
        for work in self._order:
            work.fail(_stopping())
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _end(self, client: str, seconds: float) -> float:
        """Return the virtual time at which a request of some seconds would end."""
        return self._virtual_time + seconds * (1 + self._clients[client])

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
            part, seconds = work.slices.pop()
            work.left -= seconds
            self._virtual_time += seconds / len(self._clients)
            if not work.slices:
                self._remove(work)
            self._idle -= 1
            loop, large_size = work.future.get_loop(), self._profile.large_size
            running = loop.run_in_executor(self._pool, work.run, part, large_size)
            running.add_done_callback(functools.partial(self._ended, work, part))

    def _ended(
        self, work: TokenizerWork[Any, Any], part: slice, running: asyncio.Future[float]
    ) -> None:
        """Pass the outcome of a slice to its work, and start the next slices."""
        self._idle += 1
        if running.cancelled():
            work.fail(_stopping())
        elif error := running.exception():
            work.fail(error)
        else:
            self.account(work.kind, sum(work.sizes[part]), running.result())
            if work.done == len(work.inputs) and not work.future.done():
                work.future.set_result(None)
        self._start()

    def _check(self, work: TokenizerWork[Any, Any], seconds: float) -> None:
        """Raise if a request cannot be done before its deadline, or if too many wait."""
        if self._closed:
            raise _stopping()
        profile, left = self._profile, work.caller.finish_by - time.monotonic()
        if left <= 0:
            raise self._late(work, retry_after(seconds))
        if self._waiting >= MAX_REQUESTS:
            why = f"{self._waiting} requests wait for {profile.owner}, which are the most"
        elif seconds > left:
            why = (
                f"to {profile.verb} it would take about {seconds:.1f} s, and {left:.1f} s are left"
            )
        else:
            return
        raise Overloaded(why, retry_after_seconds=retry_after(seconds), reason=profile.pool)

    def _late(self, work: TokenizerWork[Any, Any], retry_after_seconds: int) -> ServiceError:
        why = f"{work.done} of {len(work.inputs)} inputs were {self._profile.done}"
        return DeadlinePassed(
            f"the deadline came when {why}", retry_after_seconds=retry_after_seconds
        )


def _slices(sizes: Sequence[int], most: int) -> Iterator[slice]:
    """Yield slices of consecutive inputs of at most `most` size together."""
    start = size = 0
    for index, own in enumerate(sizes):
        if index > start and size + own > most:
            yield slice(start, index)
            start, size = index, 0
        size += own
    yield slice(start, len(sizes))


def _stopping() -> ServiceError:
    return EngineUnavailable("the service is stopping", retry_after_seconds=5)
