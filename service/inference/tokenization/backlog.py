"""The requests that wait for the tokenizer, its threads, and forecasts of how long they take."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from service.errors import DeadlinePassed, EngineUnavailable, Overloaded, ServiceError
from service.inference.tokenization.turns import Turns
from service.scheduler.admission import retry_after
from service.scheduler.submission import Caller
from service.system.resources import lower_priority, release_memory

SLICE_CHARACTERS = 2**14
"""Characters that are tokenised between two looks at the deadline, some 20 ms; one input alone may
have more."""
LARGE_CHARACTERS = 2**17
"""Characters of a slice for which the tokenizer takes so much memory (some 75 MB) that it goes back
to the system at once."""
MAX_REQUESTS = 1024
"""Maximum number of requests that wait."""
WEIGHT, LARGEST_RATIO = 0.1, 3.0
"""Weight of the last slice in the mean seconds of a character, and the most that it counts for as a
multiple of the mean."""
Kind = Literal["texts", "pieces"]
"""Work of the tokenizer, by what a character costs: ids alone, or tokens and their places."""


Given = TypeVar("Given")
Found = TypeVar("Found")


@dataclass(frozen=True)
class TokenizerWork(Generic[Given, Found]):
    """What a request asks of the tokenizer."""

    caller: Caller
    inputs: Sequence[Given]
    sizes: Sequence[int]
    """Number of characters of each input that are tokenised."""
    work: Callable[[Sequence[Given], int], list[Found]]
    """Some of the inputs and the index of the first → the result for each of them."""
    kind: Kind = "texts"


@dataclass(eq=False)
class _Job:
    """A request whose inputs are tokenised slice by slice."""

    asked: TokenizerWork[Any, Any]
    pace: float
    """Seconds of a character."""
    future: asyncio.Future[list[Any]]
    client: str = field(init=False)
    left: float = field(init=False)
    """Seconds of the slices that no thread has taken yet."""
    slices: list[slice] = field(init=False)
    """Slices that no thread has taken yet, the last of them first."""
    done: int = 0
    """Number of inputs that are tokenised."""
    results: dict[int, list[Any]] = field(default_factory=dict)
    """Results of each slice, by the index of its first input."""

    def __post_init__(self) -> None:
        self.client = self.asked.caller.client
        self.left = self.pace * sum(self.asked.sizes)
        self.slices = [*_slices(self.asked.sizes)][::-1]

    def take(self, part: slice, found: list[Any]) -> None:
        """Keep the results of a slice; those of all slices end the job."""
        self.results[part.start] = found
        self.done += len(found)
        if self.done == len(self.asked.inputs) and not self.future.done():
            self.future.set_result(
                [one for _, some in sorted(self.results.items()) for one in some]
            )

    def fail(self, error: BaseException) -> None:
        """End the job."""
        self.slices.clear()
        if not self.future.done():
            self.future.set_exception(error)


class Backlog:
    """Tokenises the inputs of requests, one request after another. To be used on the event loop."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self.threads, "tokenizer", lower_priority)
        self._pace: dict[Kind, float] = dict.fromkeys(("texts", "pieces"), 1e-6)
        """Seconds of a character in one thread; about right before they are measured."""
        self._turns: Turns[_Job] = Turns()
        self._waiting = 0
        self._idle = self.threads
        self._closed = False

    def expect(self, kind: Kind, characters: int, seconds: float) -> None:
        """Take the time of work that was measured beforehand."""
        self._pace[kind] = seconds / characters

    def account(self, kind: Kind, characters: int, seconds: float) -> None:
        """Take the time of a slice into the mean; one that was interrupted counts as slow."""
        if characters:
            pace = self._pace[kind]
            found = min(seconds / characters, LARGEST_RATIO * pace)
            self._pace[kind] += WEIGHT * (found - pace)

    def seconds(self, client: str, characters: int, kind: Kind = "texts") -> float:
        """Return the seconds until a client's request is tokenised, were it to come now."""
        own = self._pace[kind] * characters
        return (self._turns.before(client, own) + own) / self.threads

    async def run(self, asked: TokenizerWork[Any, Found]) -> list[Found]:
        """Return the result of the tokenizer's work for each input of a request.

        Cancelling the call ends it after the slices that run.

        Raises:
            Overloaded: too many requests wait, or the work would end after the deadline.
            DeadlinePassed: the deadline came before all were done.
            EngineUnavailable: the service is stopping.

        """
        self._check(asked)
        job = _Job(asked, self._pace[asked.kind], asyncio.get_running_loop().create_future())
        self._turns.push(job)
        self._waiting += 1
        try:
            self._start()
            return await job.future
        finally:
            self._waiting -= 1
            self._turns.remove(job)

    def close(self) -> None:
        """Let the slices that run finish; nothing more is tokenised."""
        self._closed = True
        for job in list(self._turns):
            job.fail(_stopping())
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _check(self, asked: TokenizerWork[Any, Any]) -> None:
        if self._closed:
            raise _stopping()
        caller = asked.caller
        seconds = self.seconds(caller.client, sum(asked.sizes), asked.kind)
        left = caller.finish_by - time.monotonic()
        if left <= 0:
            raise DeadlinePassed(
                f"the deadline came when 0 of {len(asked.inputs)} inputs were tokenised",
                retry_after_seconds=retry_after(seconds),
            )
        if self._waiting >= MAX_REQUESTS:
            why = f"{self._waiting} requests wait for the tokenizer, which are the most"
        elif seconds > left:
            why = f"to tokenise it would take about {seconds:.1f} s, and {left:.1f} s are left"
        else:
            return
        raise Overloaded(why, retry_after_seconds=retry_after(seconds), reason="tokenizer")

    def _start(self) -> None:
        """Give slices of the request whose turn it is to the threads that are idle."""
        while self._idle and not self._closed and (job := self._turns.first()):
            if job.future.done():
                self._turns.remove(job)
                continue
            if time.monotonic() >= job.asked.caller.finish_by:
                job.fail(_late(job))
                continue
            part = job.slices.pop()
            self._turns.account(job, job.pace * sum(job.asked.sizes[part]))
            if not job.slices:
                self._turns.remove(job)
            self._idle -= 1
            running = job.future.get_loop().run_in_executor(self._pool, _timed, job.asked, part)
            running.add_done_callback(functools.partial(self._ended, job, part))

    def _ended(
        self, job: _Job, part: slice, running: asyncio.Future[tuple[list[Any], float]]
    ) -> None:
        self._idle += 1
        if running.cancelled():
            job.fail(_stopping())
        elif error := running.exception():
            job.fail(error)
        else:
            found, seconds = running.result()
            self.account(job.asked.kind, sum(job.asked.sizes[part]), seconds)
            job.take(part, found)
        self._start()


def _timed(asked: TokenizerWork[Any, Found], part: slice) -> tuple[list[Found], float]:
    """Return the results of a slice and its seconds. In a thread."""
    began = time.monotonic()
    results = asked.work(asked.inputs[part], part.start)
    seconds = time.monotonic() - began
    if sum(asked.sizes[part]) > LARGE_CHARACTERS:
        release_memory()  # else each thread keeps what the tokenizer took for the text
    return results, seconds


def _slices(sizes: Sequence[int]) -> Iterator[slice]:
    """Yield neighbours that have at most `SLICE_CHARACTERS` together."""
    start = size = 0
    for index, own in enumerate(sizes):
        if index > start and size + own > SLICE_CHARACTERS:
            yield slice(start, index)
            start, size = index, 0
        size += own
    yield slice(start, len(sizes))


def _late(job: _Job) -> ServiceError:
    return DeadlinePassed(
        f"the deadline came when {job.done} of {len(job.asked.inputs)} inputs were tokenised",
        retry_after_seconds=1,
    )


def _stopping() -> ServiceError:
    return EngineUnavailable("the service is stopping", retry_after_seconds=5)
