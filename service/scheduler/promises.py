"""Work of admitted requests that is not computed yet, beyond what they submitted at first."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple


class Promise:
    """Tokens that one request may still submit; counted down as they are computed."""

    def __init__(
        self, tokens: int, needed: int | None = None, *, writing_seconds: float = 0.0
    ) -> None:
        """Promise the work of a request.

        Args:
            tokens: all tokens that it may submit.
            needed: tokens without which its answer is of no use, and for which there has to be
                time before its deadline; all when None.
            writing_seconds: time between the last token and the deadline.

        """
        self.tokens = tokens
        self.needed = tokens if needed is None else needed
        self.writing_seconds = writing_seconds

    def keep(self, tokens: int) -> None:
        """Subtract tokens that are computed, or wait in a queue as the request's first."""
        self.tokens = max(0, self.tokens - tokens)
        self.needed = max(0, self.needed - tokens)

    def end(self) -> None:
        """Promise nothing more."""
        self.tokens = self.needed = 0


class _Open(NamedTuple):
    """A promise of a request that is being computed."""

    client: str
    promise: Promise
    finish_by: float
    """`time.monotonic()` of the request's deadline, at which it ends, complete or not."""


class Promises:
    """Promises of a lane's requests. To be used on the event loop."""

    def __init__(self) -> None:
        self._open: list[_Open] = []

    def add(self, client: str, promise: Promise, finish_by: float = math.inf) -> None:
        """Add the promise of a client's request that was admitted."""
        self._open.append(_Open(client, promise, finish_by))

    @property
    def tokens(self) -> int:
        """Number of tokens of all promises."""
        return sum(each.promise.tokens for each in self._open)

    def before(self, client: str, tokens: int) -> int:
        """Return the tokens reserved by other requests that are scheduled before this one's last.

        In fair shares: a request of the same client has its turn as often, and another client as
        often as this one, as long as it has something to come.

        Args:
            client: who asks.
            tokens: tokens of the request.

        """
        self._open = [each for each in self._open if each.promise.tokens]
        left = [(each.client, each.promise.tokens) for each in self._open]
        return round(_before(left, client, tokens))

    def seconds_until_room(
        self, client: str, tokens: int, most: float, tokens_per_second: float, now: float
    ) -> int:
        """Return the whole seconds until a request that is refused now would be admitted.

        Until then the promised work is computed in fair shares, and ends at its deadlines.

        Args:
            client: who asks.
            tokens: tokens of the request.
            most: number of tokens, with those scheduled before its last, that it has time for.
            tokens_per_second: rate at which promised work is computed.
            now: `time.monotonic()`.

        """

        def room(seconds: int) -> bool:
            left = self._after(seconds * tokens_per_second, now + seconds)
            return tokens + _before(left, client, tokens) <= most

        total = sum(each.promise.tokens for each in self._open)
        longest = math.ceil(total / tokens_per_second) + 1
        return 1 + bisect.bisect_left(range(1, longest), True, key=room)

    def _after(self, computed: float, now: float) -> list[tuple[str, float]]:
        """Return client and remaining tokens of each promise once some tokens are computed."""
        clients = defaultdict[str, list[_Open]](list)
        for each in self._open:
            clients[each.client].append(each)
        own = [[each.promise.tokens for each in group] for group in clients.values()]
        of_clients = fair_shares([sum(tokens) for tokens in own], computed)
        left: list[tuple[str, float]] = []
        for group, tokens, share in zip(clients.values(), own, of_clients, strict=True):
            for each, size, done in zip(group, tokens, fair_shares(tokens, share), strict=True):
                if each.finish_by > now:
                    left.append((each.client, size - done))
        return left


def fair_shares(sizes: Sequence[float], total: float) -> list[float]:
    """Divide a total equally, and what is more than a size equally among the others."""
    shares = [0.0] * len(sizes)
    for rank, index in enumerate(sorted(range(len(sizes)), key=lambda index: sizes[index])):
        shares[index] = min(sizes[index], total / (len(sizes) - rank))
        total -= shares[index]
    return shares


def _before(left: Sequence[tuple[str, float]], client: str, tokens: int) -> float:
    own, of_others = 0.0, defaultdict[str, float](float)
    for whose, size in left:
        if whose == client:
            own += min(tokens, size)
        else:
            of_others[whose] += size
    return own + sum(min(tokens + own, each) for each in of_others.values())
