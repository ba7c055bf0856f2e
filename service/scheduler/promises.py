"""What admitted requests will still ask for, which waits in no queue yet."""

from __future__ import annotations

from collections import defaultdict


class Promise:
    """Tokens that one request may still submit; counted down as it does."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def keep(self, tokens: int) -> None:
        """So many of them wait in a queue now."""
        self.tokens = max(0, self.tokens - tokens)

    def end(self) -> None:
        """Nothing more will come."""
        self.tokens = 0


class Promises:
    """Those of a lane's requests. To be used on the event loop."""

    def __init__(self) -> None:
        self._open: list[tuple[str, Promise]] = []

    def add(self, client: str, promise: Promise) -> None:
        """A request of a client was admitted."""
        self._open.append((client, promise))

    def before(self, client: str, tokens: int) -> int:
        """Tokens promised to others that are computed before the last of so many of a client's.

        In fair shares: a request of the same client has its turn as often, and another client as
        often as this one, as long as it has something to come.
        """
        self._open = [(whose, promise) for whose, promise in self._open if promise.tokens]
        own, of_others = 0, defaultdict[str, int](int)
        for whose, promise in self._open:
            if whose == client:
                own += min(tokens, promise.tokens)
            else:
                of_others[whose] += promise.tokens
        return own + sum(min(tokens + own, each) for each in of_others.values())
