"""The order in which requests are tokenised: one is finished before the next large one begins.

Clients share the threads: the client for whom the least work was done goes first. The
requests of one client go in the order in which they would end if all of them advanced at once (fair
sojourn protocol: E. Friedman, S. Henderson, "Fairness and efficiency in web server protocols",
SIGMETRICS 2003). So each ends at least as soon as if all advanced at once, and a short text goes
before long lists that came earlier.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """The slices of one request that wait to be tokenised."""

    client: str
    left: float
    """Seconds of the slices that no thread has taken yet."""


Job = TypeVar("Job", bound=Waiting)


@dataclass
class _Client(Generic[Job]):
    served: float
    """Seconds of work done for the client, on top of its start among the others."""
    virtual_time: float = 0.0
    """Seconds that each request of the client would have had if all advanced at once."""
    jobs: list[tuple[float, int, Job]] = field(default_factory=list)
    """Requests by the virtual time of their end, ascending."""

    def before(self, seconds: float) -> float:
        """Return the seconds of the requests that end before a new one."""
        count = bisect.bisect(self.jobs, self.virtual_time + seconds, key=lambda item: item[0])
        return sum(job.left for _, _, job in self.jobs[:count])

    @property
    def left(self) -> float:
        """Seconds of all requests that wait."""
        return sum(job.left for _, _, job in self.jobs)


class Turns(Generic[Job]):
    """The requests that wait to be tokenised."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client[Job]] = {}
        """Clients of whom something waits."""
        self._served = 0.0
        """`served` of the client who went last: where one that comes starts, without credit."""
        self._numbers = itertools.count()

    def __iter__(self) -> Iterator[Job]:
        """Yield all requests that wait."""
        for client in self._clients.values():
            yield from (job for _, _, job in client.jobs)

    def push(self, job: Job) -> None:
        """Add a request."""
        client = self._clients.setdefault(job.client, _Client(self._served))
        bisect.insort(client.jobs, (client.virtual_time + job.left, next(self._numbers), job))

    def remove(self, job: Job) -> None:
        """Remove a request that is tokenised or whose caller left; unless it was removed."""
        client = self._clients.get(job.client)
        if client is not None:
            client.jobs = [item for item in client.jobs if item[2] is not job]
            if not client.jobs:
                del self._clients[job.client]

    def first(self) -> Job | None:
        """Return the request whose turn it is."""
        if not self._clients:
            return None
        client = min(self._clients.values(), key=lambda client: client.served)
        self._served = max(self._served, client.served)
        return client.jobs[0][2]

    def account(self, job: Job, seconds: float) -> None:
        """Note that a thread took a slice of a request that waits."""
        client = self._clients[job.client]
        client.served += seconds
        client.virtual_time += seconds / len(client.jobs)
        job.left -= seconds

    def before(self, name: str, seconds: float) -> float:
        """Return the seconds of work that is done before the end of a request that comes now.

        Args:
            name: of the request's client.
            seconds: work of the request itself.

        """
        own = self._clients.get(name)
        before = own.before(seconds) if own else 0.0
        others = (client for other, client in self._clients.items() if other != name)
        return before + sum(min(client.left, before + seconds) for client in others)
