"""The order in which waiting texts are computed: fair queueing, between clients and then requests.

Every client that waits gets the same share of tokens, and of a client's share every request that
waits: a list of hundreds of texts goes in slices between the single texts of others, which are
computed in the order in which they came.

Start-time fair queueing (P. Goyal, H. M. Vin, H. Cheng, SIGCOMM 1996): a text's start time is the
virtual time at which its request came, or the end of the text before it; the smallest goes first.
The virtual time of a client advances by the tokens that are computed for it, divided by the number
of its requests that wait.
"""

from __future__ import annotations

import bisect
import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from service.scheduler.submission import Entry, Submission

EXACT = 256
"""Waiting texts whose tokens are counted one by one for a prediction; what is beyond is taken to be
as long as its mean."""


class _Place(NamedTuple):
    start: float
    continues: bool
    """Whether texts of its request go before it: of equal starts what only begins goes first."""
    number: int
    entry: Entry


class ClientQueue:
    """The waiting texts of one client, in fair order between its requests."""

    def __init__(self, served: float) -> None:
        self.served = served
        """Tokens that were computed for it, on top of its start among the other clients."""
        self.tokens = 0
        self.virtual_time = 0.0
        self._advance = 0.0
        """Virtual time of the last batch, which is over when the next is taken."""
        self._order: list[_Place] = []
        self._requests: Counter[Submission] = Counter()
        """Waiting texts of each request."""

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Entry]:
        """The texts in fair order."""
        return (place.entry for place in self._order)

    def push(self, submission: Submission, entries: Sequence[Entry]) -> None:
        """Queue texts of one request."""
        self._requests[submission] += len(entries)
        start = self.virtual_time
        for entry in entries:
            entry.start = start
            start += entry.task.tokens
            self.tokens += entry.task.tokens
            bisect.insort(self._order, _Place(*_key(entry), entry), key=_place)

    def remove(self, entry: Entry) -> None:
        """The text no longer waits."""
        del self._order[bisect.bisect_left(self._order, _key(entry), key=_place)]
        self.tokens -= entry.task.tokens
        self._requests[entry.submission] -= 1
        if not self._requests[entry.submission]:
            del self._requests[entry.submission]

    def begin_batch(self) -> None:
        """A text of this client goes first in the next batch."""
        self.virtual_time = max(self.virtual_time + self._advance, self._order[0].start)
        self._advance = 0.0

    def account(self, tokens: int) -> None:
        """Waiting texts of so many tokens are computed now."""
        self.served += tokens
        self._advance += tokens / len(self._requests)

    def tokens_before(self, start: float) -> int:
        """Tokens of the texts that go before one which comes now and has this start time."""
        count = bisect.bisect(self._order, (start, True, -1), key=_place)
        if count == len(self._order):
            return self.tokens
        exact = sum(place.entry.task.tokens for place in self._order[: min(count, EXACT)])
        if count <= EXACT:
            return exact
        mean = (self.tokens - exact) / (len(self._order) - EXACT)
        return exact + round(mean * (count - EXACT))


class FairQueue:
    """The texts that wait in a lane. Nothing here locks."""

    def __init__(self) -> None:
        self._clients: dict[str, ClientQueue] = {}
        """Those of whom something waits."""
        self._served = 0.0
        """`served` of the client who went last: where one that comes starts, without credit."""
        self.tokens = 0
        """Of all texts that wait."""
        self._texts = 0

    def __len__(self) -> int:
        return self._texts

    def __iter__(self) -> Iterator[Entry]:
        """The texts in fair order, were no more to come."""
        turns = [
            (queue.served, number, iter(queue))
            for number, queue in enumerate(self._clients.values())
        ]
        heapq.heapify(turns)
        while turns:
            served, number, texts = turns[0]
            if (entry := next(texts, None)) is None:
                heapq.heappop(turns)
            else:
                heapq.heapreplace(turns, (served + entry.task.tokens, number, texts))
                yield entry

    def push(self, submission: Submission, entries: Sequence[Entry]) -> None:
        """Queue texts of one request."""
        queue = self._clients.setdefault(submission.caller.client, ClientQueue(self._served))
        queue.push(submission, entries)
        self.tokens += sum(entry.task.tokens for entry in entries)
        self._texts += len(entries)

    def remove(self, entry: Entry) -> None:
        """The text no longer waits."""
        queue = self._clients[entry.submission.caller.client]
        queue.remove(entry)
        self.tokens -= entry.task.tokens
        self._texts -= 1
        if not queue:
            del self._clients[entry.submission.caller.client]

    def first(self, tokens: int) -> list[Entry]:
        """The texts that go first, at least one, until they hold so many tokens."""
        found: list[Entry] = []
        held = 0
        for entry in self:
            if found and held + entry.task.tokens > tokens:
                break
            found.append(entry)
            held += entry.task.tokens
        return found

    def begin(self, batch: Sequence[Entry], *, beside: bool = False) -> None:
        """Waiting texts are computed now.

        Args:
            batch: the texts; the first of them is the first in fair order.
            beside: whether they go beside the batches before them, whose virtual time is not over.

        """
        first = self._clients[batch[0].submission.caller.client]
        self._served = max(self._served, first.served)
        if not beside:
            first.begin_batch()
        for entry in batch:
            self._clients[entry.submission.caller.client].account(entry.task.tokens)

    def tokens_before(self, client: str, tokens: int = 0) -> int:
        """Tokens that are computed before a request, were it to come now.

        Args:
            client: whose it would be.
            tokens: of its texts before the one that is asked about.

        """
        own = self._clients.get(client)
        before = own.tokens_before(own.virtual_time + tokens) if own else 0
        share = before + tokens
        others = (queue for name, queue in self._clients.items() if name != client)
        return before + tokens + sum(min(queue.tokens, share) for queue in others)


def _place(place: _Place) -> tuple[float, bool, int]:
    return place[:3]


def _key(entry: Entry) -> tuple[float, bool, int]:
    return entry.start, entry.index > 0, entry.number
