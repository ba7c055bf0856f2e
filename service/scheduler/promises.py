"""Promised work of admitted requests, which is not submitted or not computed yet."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple


class Promise:
    """Number of tokens that a request may still submit; decreases as they are computed."""

    def __init__(
        self, tokens: int, needed: int | None = None, *, writing_seconds: float = 0.0
    ) -> None:
        """Promise at most `tokens` of a request, of which `needed`, or all, precede its deadline.

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
        """Set the promise to zero."""
        self.tokens = self.needed = 0


class _Open(NamedTuple):
    """Promise of a request that is being computed."""

    client: str
    promise: Promise
    finish_by: float
    """`time.monotonic()` of the deadline, at which the request ends, complete or not."""


class Promises:
    """Promises of a lane's requests, for use on the event loop."""

    def __init__(self) -> None:
        self._open: list[_Open] = []

    def add(self, client: str, promise: Promise, finish_by: float = math.inf) -> None:
        """Add the promise of an admitted request."""
        self._open.append(_Open(client, promise, finish_by))

    @property
    def tokens(self) -> int:
        """Number of tokens of all promises."""
        return sum(request.promise.tokens for request in self._open)

    def before(self, client: str, tokens: int) -> int:
        """Return the promised tokens of other requests that are computed before this request ends.

        Clients with promised work get equal shares, and so do the requests of one client.
        """
        if not self._open:
            return 0
        self._open = [request for request in self._open if request.promise.tokens]
        left = [(request.client, request.promise.tokens) for request in self._open]
        return round(_before(left, client, tokens))

    def seconds_until_room(
        self, client: str, tokens: int, most: float, tokens_per_second: float, now: float
    ) -> int:
        """Return the whole seconds until a request that is refused now would be admitted.

        Until then the promised work is computed in fair shares, and requests end at their
        deadlines. `most` tokens, promised ones included, can be computed before the request's
        deadline.
        """

        def room(seconds: int) -> bool:
            left = self._after(seconds * tokens_per_second, now + seconds)
            return tokens + _before(left, client, tokens) <= most

        longest = math.ceil(self.tokens / tokens_per_second) + 1
        return 1 + bisect.bisect_left(range(1, longest), True, key=room)

    def _after(self, computed: float, now: float) -> list[tuple[str, float]]:
        """Return client and remaining tokens of each promise once some tokens are computed."""
        by_client = defaultdict[str, list[_Open]](list)
        for request in self._open:
            by_client[request.client].append(request)
        sizes = [[request.promise.tokens for request in group] for group in by_client.values()]
        client_shares = fair_shares([sum(tokens) for tokens in sizes], computed)
        left: list[tuple[str, float]] = []
        for group, tokens, share in zip(by_client.values(), sizes, client_shares, strict=True):
            for request, size, done in zip(group, tokens, fair_shares(tokens, share), strict=True):
                if request.finish_by > now:
                    left.append((request.client, size - done))
        return left


def fair_shares(sizes: Sequence[float], total: float) -> list[float]:
    """Return shares of a total: equal ones, except that no share exceeds its size (max-min)."""
    shares = [0.0] * len(sizes)
    for rank, index in enumerate(sorted(range(len(sizes)), key=lambda index: sizes[index])):
        shares[index] = min(sizes[index], total / (len(sizes) - rank))
        total -= shares[index]
    return shares


def _before(left: Sequence[tuple[str, float]], client: str, tokens: int) -> float:
    """Return the promised tokens that are computed before a client's request with `tokens` ends."""
    same_client, other_clients = 0.0, defaultdict[str, float](float)
    for name, size in left:
        if name == client:
            same_client += min(tokens, size)
        else:
            other_clients[name] += size
    share = tokens + same_client
    return same_client + sum(min(share, size) for size in other_clients.values())
