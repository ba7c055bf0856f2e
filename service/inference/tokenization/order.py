"""Order of tokenisation by the fair sojourn protocol.

Clients share the threads: the client with the least work done goes first. Requests of a client are
finished one after another, in the order in which they would end if they shared the threads equally
(E. Friedman, S. Henderson, "Fairness and efficiency in web server protocols", SIGMETRICS 2003).
Each request therefore ends at least as soon as with equal sharing, and a short text goes before
earlier long lists.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


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
