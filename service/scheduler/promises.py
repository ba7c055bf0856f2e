"""Work of admitted requests that waits in no queue yet."""

from __future__ import annotations

from collections import defaultdict


class Promise:
    """Tokens that one request may still submit; counted down as it does."""

    def __init__(self, tokens: int, needed: int | None = None) -> None:
        """Promise the work of a request.

        Args:
            tokens: all tokens that it may submit.
            needed: tokens without which its answer is of no use, and for which there has to be
                time before its deadline; all when None.

        """
        self.tokens = tokens
        self.needed = tokens if needed is None else needed

    def keep(self, tokens: int) -> None:
        """Subtract tokens that wait in a queue now."""
        self.tokens = max(0, self.tokens - tokens)
        self.needed = max(0, self.needed - tokens)

    def end(self) -> None:
        """Promise nothing more."""
        self.tokens = self.needed = 0


class Promises:
    """Promises of a lane's requests. To be used on the event loop."""

    def __init__(self) -> None:
        self._open: list[tuple[str, Promise]] = []

    def add(self, client: str, promise: Promise) -> None:
        """Add the promise of a client's request that was admitted."""
        self._open.append((client, promise))

    @property
    def tokens(self) -> int:
        """Number of tokens of all promises."""
        return sum(promise.tokens for _, promise in self._open)

    def before(self, client: str, tokens: int) -> int:
        """Return the tokens reserved by other requests that are scheduled before this one's last.

        In fair shares: a request of the same client has its turn as often, and another client as
        often as this one, as long as it has something to come.

        Args:
            client: who asks.
            tokens: tokens of the request.

        """
        self._open = [(whose, promise) for whose, promise in self._open if promise.tokens]
        own, of_others = 0, defaultdict[str, int](int)
        for whose, promise in self._open:
            if whose == client:
                own += min(tokens, promise.tokens)
            else:
                of_others[whose] += promise.tokens
        return own + sum(min(tokens + own, each) for each in of_others.values())
