"""Fair queueing: order of waiting texts, fair between clients and between a client's requests.

All waiting clients get equal shares of tokens, and all waiting requests of a client get equal
shares of the client's tokens. A list of hundreds of texts is therefore computed in slices between
single texts of other requests, which are computed in the order of their arrival.

Start-time fair queueing (P. Goyal, H. M. Vin, H. Cheng, SIGCOMM 1996): a text's start time is the
virtual time at which its request arrived, or the end of the previous text of the request. The text
with the smallest start time goes first. The virtual time of a client advances by the tokens
computed for the client, divided by the number of its waiting requests.
"""

from __future__ import annotations

import bisect
import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from service.scheduler.submission import Entry, Submission

EXACT = 256
"""Maximum number of waiting texts whose tokens are summed exactly for a prediction; further texts
count with the mean of their tokens."""


class _Place(NamedTuple):
    """Sort key of a text, and the text."""

    start: float
    continues: bool
    """Whether the text follows others of its request. Of equal starts, first texts go first."""
    number: int
    entry: Entry[object]


class ClientQueue:
    """The waiting texts of one client, in fair order between its requests."""

    def __init__(self, served: float) -> None:
        self.served = served
        """Tokens computed for the client, plus the value at which the client started."""
        self.tokens = 0
        """Tokens of all waiting texts."""
        self.virtual_time = 0.0
        self._advance = 0.0
        """Increase of the virtual time by the last batch, added when the next is taken."""
        self._order: list[_Place] = []
        self._requests: Counter[Submission[object]] = Counter()
        """Number of waiting texts of each request."""

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Entry[object]]:
        """Return an iterator of the texts in fair order."""
        return (place.entry for place in self._order)

    def push(self, submission: Submission[object], entries: Sequence[Entry[object]]) -> None:
        """Queue texts of one request."""
        self._requests[submission] += len(entries)
        start = self.virtual_time
        for entry in entries:
            entry.start = start
            start += entry.task.tokens
            self.tokens += entry.task.tokens
            bisect.insort(self._order, _Place(*_key(entry), entry), key=_place)

    def remove(self, entry: Entry[object]) -> None:
        """Remove a text."""
        del self._order[bisect.bisect_left(self._order, _key(entry), key=_place)]
        self.tokens -= entry.task.tokens
        self._requests[entry.submission] -= 1
        if not self._requests[entry.submission]:
            del self._requests[entry.submission]

    def begin_batch(self) -> None:
        """Advance the virtual time before a batch whose first text is of this client."""
        self.virtual_time = max(self.virtual_time + self._advance, self._order[0].start)
        self._advance = 0.0

    def account(self, tokens: int) -> None:
        """Count the tokens of waiting texts that a batch takes."""
        self.served += tokens
        self._advance += tokens / len(self._requests)

    def tokens_before(self, start: float) -> int:
        """Return the tokens of texts that go before a new text with a start time."""
        count = bisect.bisect(self._order, (start, True, -1), key=_place)
        if count == len(self._order):
            return self.tokens
        exact = sum(place.entry.task.tokens for place in self._order[: min(count, EXACT)])
        if count <= EXACT:
            return exact
        mean = (self.tokens - exact) / (len(self._order) - EXACT)
        return exact + round(mean * (count - EXACT))


class FairQueue:
    """Waiting texts of a lane. The caller holds the lock of the lanes."""

    def __init__(self) -> None:
        self._clients: dict[str, ClientQueue] = {}
        """Clients with waiting texts, by name."""
        self._served = 0.0
        """`served` of the client last computed, at which a new client starts without credit."""
        self.tokens = 0
        """Tokens of all waiting texts."""
        self._texts = 0
        """Number of waiting texts."""

    def __len__(self) -> int:
        return self._texts

    def __iter__(self) -> Iterator[Entry[object]]:
        """Yield the texts in the fair order in which they are computed if no more texts arrive."""
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

    def push(self, submission: Submission[object], entries: Sequence[Entry[object]]) -> None:
        """Queue texts of one request."""
        queue = self._clients.setdefault(submission.caller.client, ClientQueue(self._served))
        queue.push(submission, entries)
        self.tokens += sum(entry.task.tokens for entry in entries)
        self._texts += len(entries)

    def remove(self, entry: Entry[object]) -> None:
        """Remove a text."""
        queue = self._clients[entry.submission.caller.client]
        queue.remove(entry)
        self.tokens -= entry.task.tokens
        self._texts -= 1
        if not queue:
            del self._clients[entry.submission.caller.client]

    def first(self, tokens: int) -> list[Entry[object]]:
        """Return the first texts in fair order with at most `tokens` tokens; at least one text."""
        entries: list[Entry[object]] = []
        total = 0
        for entry in self:
            if entries and total + entry.task.tokens > tokens:
                break
            entries.append(entry)
            total += entry.task.tokens
        return entries

    def begin(self, batch: Sequence[Entry[object]], *, beside: bool = False) -> None:
        """Account for a batch of waiting texts, with the first in fair order at its head.

        Beside running batches, virtual time does not advance before their end.
        """
        first = self._clients[batch[0].submission.caller.client]
        self._served = max(self._served, first.served)
        if not beside:
            first.begin_batch()
        for entry in batch:
            self._clients[entry.submission.caller.client].account(entry.task.tokens)

    def tokens_before(self, client: str, tokens: int = 0) -> int:
        """Return the tokens that are computed before a text of a request that arrives now.

        `tokens` are those of the request's texts before the text; 0 for its first text.
        """
        own = self._clients.get(client)
        before = own.tokens_before(own.virtual_time + tokens) if own else 0
        share = before + tokens
        others = (queue for name, queue in self._clients.items() if name != client)
        return share + sum(min(queue.tokens, share) for queue in others)


def _place(place: _Place) -> tuple[float, bool, int]:
    return place[:3]


def _key(entry: Entry[object]) -> tuple[float, bool, int]:
    return entry.start, entry.index > 0, entry.number
