"""Backlog of the tokenizer, or of pictures: waiting requests, threads, and predicted times.

Clients share the threads by the fair sojourn protocol: the client with the least work done goes
first. Requests of a client are finished one after another, in the order in which they would end if
they shared the threads equally (E. Friedman, S. Henderson, "Fairness and efficiency in web server
protocols", SIGMETRICS 2003). Each request therefore ends at least as soon as with equal sharing,
and a short text goes before earlier long lists.
"""

from __future__ import annotations

import asyncio
import bisect
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from service.errors import DeadlinePassed, EngineUnavailable, Overloaded, ServiceError
from service.scheduler.admission import retry_after
from service.scheduler.call import Call
from service.system.resources import lower_priority, release_memory


class Waiting(Protocol):
    """Waiting slices of a request."""

    client: str
    left: float
    """Seconds of the slices that no thread has taken yet."""


Job = TypeVar("Job", bound=Waiting)


@dataclass
class _Client(Generic[Job]):
    """Waiting requests of a client."""

    served: float
    """Seconds of work done for the client, plus the value at which the client started."""
    virtual_time: float = 0.0
    """Seconds that each request of the client would have had with equal sharing."""
    jobs: list[tuple[float, int, Job]] = field(default_factory=list)
    """Requests in ascending order of the virtual time of their end."""

    def before(self, seconds: float) -> float:
        """Return the seconds of the requests that end before a new request of some seconds."""
        count = bisect.bisect(self.jobs, self.virtual_time + seconds, key=lambda item: item[0])
        return sum(job.left for _, _, job in self.jobs[:count])

    @property
    def left(self) -> float:
        """Seconds of all waiting requests."""
        return sum(job.left for _, _, job in self.jobs)


class SojournOrder(Generic[Job]):
    """Waiting requests in the order of the fair sojourn protocol."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client[Job]] = {}
        """Clients with waiting requests, by name."""
        self._served = 0.0
        """`served` of the client last served, at which a new client starts without credit."""
        self._numbers = itertools.count()

    def __iter__(self) -> Iterator[Job]:
        """Yield all waiting requests."""
        for client in self._clients.values():
            yield from (job for _, _, job in client.jobs)

    def push(self, job: Job) -> None:
        """Add a request."""
        client = self._clients.setdefault(job.client, _Client(self._served))
        bisect.insort(client.jobs, (client.virtual_time + job.left, next(self._numbers), job))

    def remove(self, job: Job) -> None:
        """Remove a request; do nothing if it was removed before."""
        client = self._clients.get(job.client)
        if client is not None:
            client.jobs = [item for item in client.jobs if item[2] is not job]
            if not client.jobs:
                del self._clients[job.client]

    def first(self) -> Job | None:
        """Return the first request in order; None if no requests wait."""
        if not self._clients:
            return None
        client = min(self._clients.values(), key=lambda client: client.served)
        self._served = max(self._served, client.served)
        return client.jobs[0][2]

    def account(self, job: Job, seconds: float) -> None:
        """Account for a slice of a waiting request that a thread has taken."""
        client = self._clients[job.client]
        client.served += seconds
        client.virtual_time += seconds / len(client.jobs)
        job.left -= seconds

    def before(self, name: str, seconds: float) -> float:
        """Return the seconds of other work that is done before a request that arrives now ends."""
        own = self._clients.get(name)
        before = own.before(seconds) if own else 0.0
        others = (client for other, client in self._clients.items() if other != name)
        return before + sum(min(client.left, before + seconds) for client in others)


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
class Nature:
    """Sizes of the slices of a backlog's work, its first pace, and its words in errors."""

    pool: str
    """Name of the threads, and the reason of refusals."""
    owner: str
    """Owner of the waiting requests, in errors."""
    verb: str
    done: str
    """Verb and participle of the work, in errors."""
    slice_size: int
    """Size of the inputs of a slice together; see `SLICE_CHARACTERS`."""
    large_size: int
    """Size from which on a slice's memory is returned at once; see `LARGE_CHARACTERS`."""
    pace: Mapping[Kind, float]
    """Seconds of a unit of size in one thread, an estimate before they are measured."""


OF_TEXTS = Nature(
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


@dataclass(frozen=True)
class TokenizerWork(Generic[Given, Result]):
    """Inputs of a request, and the function that tokenises them or prepares their pixels."""

    caller: Call
    inputs: Sequence[Given]
    sizes: Sequence[int]
    """Number of characters of each input that are tokenised; of a picture, see `pictures`."""
    tokenize: Callable[[Sequence[Given], int], list[Result]]
    """Function of some inputs and the index of the first, which returns a result for each."""
    kind: Kind = "texts"


@dataclass(eq=False)
class _Job:
    """Request whose inputs are tokenised or prepared slice by slice."""

    nature: Nature
    caller: Call
    sizes: Sequence[int]
    """Size of each input."""
    kind: Kind
    tokenize: Callable[[slice], None]
    """Function that tokenises a slice and keeps the results; called in a thread."""
    pace: float
    """Seconds of a unit of size."""
    future: asyncio.Future[None]
    """Resolved when all inputs are tokenised."""
    client: str = field(init=False)
    left: float = field(init=False)
    """Seconds of the slices that no thread has taken yet."""
    slices: list[slice] = field(init=False)
    """Slices that no thread has taken yet, last one first."""
    done: int = 0
    """Number of inputs that are tokenised."""

    def __post_init__(self) -> None:
        self.client = self.caller.client
        self.left = self.pace * sum(self.sizes)
        self.slices = [*_slices(self.sizes, self.nature.slice_size)][::-1]

    def run(self, part: slice) -> float:
        """Tokenise a slice; return its seconds. Runs in a thread."""
        began = time.monotonic()
        self.tokenize(part)
        seconds = time.monotonic() - began
        if sum(self.sizes[part]) > self.nature.large_size:
            release_memory()  # otherwise each thread keeps its memory
        return seconds

    def add(self, part: slice) -> None:
        """Count the inputs of a slice; the last one resolves the future."""
        self.done += part.stop - part.start
        if self.done == len(self.sizes) and not self.future.done():
            self.future.set_result(None)

    def fail(self, error: BaseException) -> None:
        """End the job with an error."""
        self.slices.clear()
        if not self.future.done():
            self.future.set_exception(error)


class Backlog:
    """Waiting requests and threads of a tokenizer or of pictures, for use on the event loop."""

    def __init__(self, threads: int | None = None, nature: Nature = OF_TEXTS) -> None:
        self.threads = threads or len(os.sched_getaffinity(0))
        self._nature = nature
        self._pool = ThreadPoolExecutor(self.threads, nature.pool, lower_priority)
        self._pace = dict(nature.pace)
        """Mean seconds of a unit of size in one thread."""
        self._order: SojournOrder[_Job] = SojournOrder()
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
            pace = min(seconds / size, LARGEST_RATIO * mean)
            self._pace[kind] += WEIGHT * (pace - mean)

    def seconds(self, client: str, size: int, kind: Kind = "texts") -> float:
        """Return the predicted seconds until a request that arrives now is done."""
        own = self._pace[kind] * size
        return (self._order.before(client, own) + own) / self.threads

    async def run(self, work: TokenizerWork[Given, Result]) -> list[Result]:
        """Return the result for each input of a request.

        Cancelling the call ends it after the running slices.
        """
        self._check(work)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        results: dict[int, list[Result]] = {}

        def tokenize(part: slice) -> None:
            results[part.start] = work.tokenize(work.inputs[part], part.start)

        pace = self._pace[work.kind]
        job = _Job(self._nature, work.caller, work.sizes, work.kind, tokenize, pace, future)
        self._order.push(job)
        self._waiting += 1
        try:
            self._start()
            await future
        finally:
            self._waiting -= 1
            self._order.remove(job)
        return [result for _, of_slice in sorted(results.items()) for result in of_slice]

    def close(self) -> None:
        """Fail all waiting requests, and wait for the running slices."""
        self._closed = True
        for job in list(self._order):
            job.fail(_stopping())
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _check(self, work: TokenizerWork[Given, Result]) -> None:
        """Raise if a request cannot be done before its deadline, or if too many wait."""
        if self._closed:
            raise _stopping()
        caller, nature = work.caller, self._nature
        seconds = self.seconds(caller.client, sum(work.sizes), work.kind)
        left = caller.finish_by - time.monotonic()
        if left <= 0:
            raise DeadlinePassed(
                f"the deadline came when 0 of {len(work.inputs)} inputs were {nature.done}",
                retry_after_seconds=retry_after(seconds),
            )
        if self._waiting >= MAX_REQUESTS:
            why = f"{self._waiting} requests wait for {nature.owner}, which are the most"
        elif seconds > left:
            why = f"to {nature.verb} it would take about {seconds:.1f} s, and {left:.1f} s are left"
        else:
            return
        raise Overloaded(why, retry_after_seconds=retry_after(seconds), reason=nature.pool)

    def _start(self) -> None:
        """Start slices of the first request in order, one for each idle thread."""
        while self._idle and not self._closed and (job := self._order.first()):
            if job.future.done():
                self._order.remove(job)
                continue
            if time.monotonic() >= job.caller.finish_by:
                job.fail(_late(job))
                continue
            part = job.slices.pop()
            self._order.account(job, job.pace * sum(job.sizes[part]))
            if not job.slices:
                self._order.remove(job)
            self._idle -= 1
            running = job.future.get_loop().run_in_executor(self._pool, job.run, part)
            running.add_done_callback(functools.partial(self._ended, job, part))

    def _ended(self, job: _Job, part: slice, running: asyncio.Future[float]) -> None:
        """Pass the outcome of a slice to its job, and start the next slices."""
        self._idle += 1
        if running.cancelled():
            job.fail(_stopping())
        elif error := running.exception():
            job.fail(error)
        else:
            self.account(job.kind, sum(job.sizes[part]), running.result())
            job.add(part)
        self._start()


def _slices(sizes: Sequence[int], most: int) -> Iterator[slice]:
    """Yield slices of consecutive inputs of at most `most` size together."""
    start = size = 0
    for index, own in enumerate(sizes):
        if index > start and size + own > most:
            yield slice(start, index)
            start, size = index, 0
        size += own
    yield slice(start, len(sizes))


def _late(job: _Job) -> ServiceError:
    return DeadlinePassed(
        f"the deadline came when {job.done} of {len(job.sizes)} inputs were {job.nature.done}",
        retry_after_seconds=1,
    )


def _stopping() -> ServiceError:
    return EngineUnavailable("the service is stopping", retry_after_seconds=5)
