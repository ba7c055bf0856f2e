"""Discrete-event simulation of a fleet: arrivals, a balancer, and replicas that form batches.

Requests arrive as a Poisson process and go to the replica with the fewest requests in flight; ties
are broken at random. There a request first takes its turn at the front (reading, tokenising,
writing: one process, one request at a time), then waits for the engine. A batch takes the requests
that have waited longest, as many as fit its token limit; its time is a constant, and a constant for
each token.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

SEED = 20170612


@dataclass(frozen=True)
class Node:
    """Speed of a replica."""

    batch_seconds: float
    """Constant seconds of a batch."""
    token_seconds: float
    batch_tokens: int = 512
    """Maximum tokens of a batch; a single request may have more."""
    front_seconds: float = 0.0
    """Seconds that the reading and writing process spends on a request."""
    engines: int = 1
    """Number of batches computed at the same time."""

    def capacity(self, mean_tokens: float) -> float:
        """Return the requests a second with full batches."""
        requests = max(1.0, self.batch_tokens / mean_tokens)
        batch = self.batch_seconds + self.token_seconds * mean_tokens * requests
        limits = [self.engines * requests / batch]
        limits += [1 / self.front_seconds] if self.front_seconds else []
        return min(limits)


@dataclass(frozen=True)
class Load:
    """Requests sent to a fleet."""

    rate: float
    """Requests a second, of the whole fleet."""
    requests: int
    tokens: Callable[[random.Random], int]
    """Function that draws the tokens of a request."""


@dataclass(frozen=True)
class Outcome:
    """Result of a simulation."""

    latencies: list[float]
    """Seconds of each request, in order of arrival."""
    batches: list[int]
    """Number of requests in each batch."""
    busy: list[float]
    """Share of each replica's engine time that was spent computing."""


class _Event(NamedTuple):
    at: float
    order: int
    happens: Callable[[float], None]


class Simulation:
    """Single run of a fleet under a load; its seed is fixed, so that equal runs are equal."""

    def __init__(self, nodes: list[Node], load: Load) -> None:
        self._load = load
        self._random = random.Random(SEED)
        self._events: list[_Event] = []
        self._order = itertools.count()
        self._arrived: list[float] = []
        self._replied: list[float] = []
        self._tokens: list[int] = []
        self._batches: list[int] = []
        self._replicas = [_Replica(node, self) for node in nodes]

    def run(self) -> Outcome:
        """Run until the last request is answered."""
        self.after(0.0, self._random.expovariate(self._load.rate), self._arrive)
        now = 0.0
        while self._events:
            now, _, happens = heapq.heappop(self._events)
            happens(now)
        latencies = [end - start for start, end in zip(self._arrived, self._replied, strict=True)]
        busy = [one.busy_seconds / (now * one.node.engines) for one in self._replicas]
        return Outcome(latencies, self._batches, busy)

    def after(self, now: float, seconds: float, happens: Callable[[float], None]) -> None:
        """Schedule an event `seconds` after `now`."""
        heapq.heappush(self._events, _Event(now + seconds, next(self._order), happens))

    def computed(self, batch: list[int]) -> None:
        """Record the size of a batch."""
        self._batches.append(len(batch))

    def answered(self, request: int, now: float) -> None:
        """Record the time of a request's reply."""
        self._replied[request] = now

    def tokens(self, request: int) -> int:
        """Return the tokens of a request."""
        return self._tokens[request]

    def _arrive(self, now: float) -> None:
        request = len(self._arrived)
        self._arrived.append(now)
        self._replied.append(now)
        self._tokens.append(self._load.tokens(self._random))
        fewest = min(one.in_flight for one in self._replicas)
        equal = [one for one in self._replicas if one.in_flight == fewest]
        self._random.choice(equal).take(request, now)
        if len(self._arrived) < self._load.requests:
            self.after(now, self._random.expovariate(self._load.rate), self._arrive)


class _Replica:
    def __init__(self, node: Node, simulation: Simulation) -> None:
        self.node = node
        self.in_flight = 0
        self.busy_seconds = 0.0
        self._simulation = simulation
        self._front_free = 0.0
        self._waiting: deque[int] = deque()
        self._idle = node.engines

    def take(self, request: int, now: float) -> None:
        self.in_flight += 1
        self._front_free = max(now, self._front_free) + self.node.front_seconds
        wait = self._front_free - now
        self._simulation.after(now, wait, lambda then: self._queue(request, then))

    def _queue(self, request: int, now: float) -> None:
        self._waiting.append(request)
        if self._idle:
            self._idle -= 1
            self._compute(now)

    def _compute(self, now: float) -> None:
        batch = [self._waiting.popleft()]
        tokens = self._simulation.tokens(batch[0])
        while self._waiting:
            more = self._simulation.tokens(self._waiting[0])
            if tokens + more > self.node.batch_tokens:
                break
            batch.append(self._waiting.popleft())
            tokens += more
        seconds = self.node.batch_seconds + self.node.token_seconds * tokens
        self.busy_seconds += seconds
        self._simulation.computed(batch)
        self._simulation.after(now, seconds, lambda then: self._finish(batch, then))

    def _finish(self, batch: list[int], now: float) -> None:
        for request in batch:
            self._simulation.answered(request, now)
        self.in_flight -= len(batch)
        if self._waiting:
            self._compute(now)
        else:
            self._idle += 1
