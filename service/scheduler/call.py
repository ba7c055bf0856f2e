"""Calls: requests as the scheduler sees them, and their work that is not queued yet."""

from __future__ import annotations

import bisect
import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from service.system.budget import Reservation

RefusalReason = Literal["tokens", "texts", "wait", "deadline"]
"""Bound for which a request was refused, or cancelled before any of its texts was computed."""
MORE_TOKENS = 1.25
"""Maximum ratio of a request's tokens to their estimate for the request to remain admitted."""


class Demand(NamedTuple):
    """Texts and tokens of a request for admission."""

    texts: int
    tokens: int
    tokenizing_seconds: float = 0.0
    """Seconds until the texts are tokenised; 0 once they are."""
    exact: bool = True
    """Whether `tokens` is exact, not an estimate by the characters of texts."""
    admitted: bool = False
    """Whether the request was admitted by its estimate. Only its deadline is checked again, at the
    pace of the batches since then."""


NOTHING = Demand(0, 0)
"""Demand of a text that is tokenised at once, and is admitted with its exact tokens."""


class PendingWork:
    """Number of tokens that a request may still submit; decreases as they are computed."""

    def __init__(
        self, tokens: int, needed: int | None = None, *, writing_seconds: float = 0.0
    ) -> None:
        """Reserve at most `tokens` of a request, of which `needed`, or all, precede its deadline.

        `writing_seconds` are needed between the last token and the deadline.
        """
        self.tokens = tokens
        self.needed = tokens if needed is None else needed
        self.writing_seconds = writing_seconds

    def keep(self, tokens: int) -> None:
        """Subtract tokens that are computed, or are queued as the request's first tasks."""
        self.tokens = max(0, self.tokens - tokens)
        self.needed = max(0, self.needed - tokens)

    def end(self) -> None:
        """Reserve nothing any more."""
        self.tokens = self.needed = 0


@dataclass(eq=False, slots=True)
class Call:
    """Request: its client and deadline, and its reserved tokens and memory."""

    client: str = ""
    """Name of the client for fair shares: an API key, or an address."""
    finish_by: float = math.inf
    """`time.monotonic()` of the request's deadline."""
    pending: PendingWork | None = None
    """All work that the request will submit, for which its deadline has to leave time."""
    submitted_to: Callable[[str], None] | None = field(default=None, repr=False)
    """Function that is called with the engine's name before tasks of the request are queued."""
    estimate: PendingWork | None = None
    """Tokens by which the request was admitted before tokenisation; see `Scheduler.admit`."""
    reservation: Reservation | None = None
    """Memory of the request; None without a bound, as for the service's own texts."""

    def kept(self, tokens: int) -> bool:
        """Subtract queued tokens from the pending work; return whether they were admitted before.

        They were if the request was admitted by an estimate, and needs no more than `MORE_TOKENS`
        times as many.
        """
        estimate, needed = self.estimate, 0
        if self.pending:
            self.pending.keep(tokens)
            needed = self.pending.needed
        if estimate is None:
            return False
        admitted = tokens + needed <= MORE_TOKENS * estimate.tokens
        if self.pending:
            estimate.end()  # the pending work covers all further work
        else:
            estimate.keep(tokens)
        return admitted

    def correct_estimate(self, tokens: int) -> None:
        """Release the held tokens beyond the actual number of tokens."""
        if self.estimate and self.estimate.tokens > tokens:
            self.estimate.keep(self.estimate.tokens - tokens)


ANYBODY = Call()


class PendingCalls:
    """Pending work of a lane's requests, for use on the event loop."""

    def __init__(self) -> None:
        self.open: list[tuple[Call, PendingWork]] = []
        """Requests and their work, some of which may be done."""

    def add(self, call: Call, work: PendingWork) -> None:
        """Add the pending work of an admitted request, and forget the work that is done."""
        self.open = [item for item in (*self.open, (call, work)) if item[1].tokens]

    @property
    def tokens(self) -> int:
        """Number of pending tokens."""
        return sum([work.tokens for _, work in self.open])

    def before(
        self, client: str, tokens: int, computed: float = 0.0, now: float = -math.inf
    ) -> int:
        """Return the pending tokens of other requests that are computed before this request ends.

        Clients with pending work get equal shares, and so do the requests of one client. At
        `time.monotonic()` of `now`, some tokens are `computed` in these shares, and requests have
        ended at their deadlines.
        """
        self.open = [item for item in self.open if item[1].tokens]
        shares = fair_shares([work.tokens for _, work in self.open], computed)
        same_client, other_clients = 0.0, defaultdict[str, float](float)
        for (call, work), share in zip(self.open, shares, strict=True):
            left = work.tokens - share if call.finish_by > now else 0.0
            if call.client == client:
                same_client += min(tokens, left)
            else:
                other_clients[call.client] += left
        most = tokens + same_client
        return round(same_client + sum(min(most, left) for left in other_clients.values()))

    def seconds_until_room(
        self, client: str, tokens: int, most: float, tokens_per_second: float, now: float
    ) -> int:
        """Return the whole seconds until a request that is refused now would be admitted.

        `most` tokens, pending ones included, can be computed before the request's deadline.
        """

        def room(seconds: int) -> bool:
            computed = seconds * tokens_per_second
            return tokens + self.before(client, tokens, computed, now + seconds) <= most

        longest = math.ceil(self.tokens / tokens_per_second) + 1
        return 1 + bisect.bisect_left(range(1, longest), True, key=room)


def fair_shares(sizes: Sequence[float], total: float) -> list[float]:
    """Return shares of a total: equal ones, except that no share exceeds its size (max-min)."""
    shares = [0.0] * len(sizes)
    for rank, index in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[index] = min(sizes[index], total / (len(sizes) - rank))
        total -= shares[index]
    return shares


def retry_after(wait: float) -> int:
    """Return the whole seconds until a retry: randomly one to two waits, to spread retries."""
    return max(1, round(random.uniform(1, 2) * wait))  # noqa: S311 - no secret
