"""Lanes: queues of one kind of work, batches of their tasks, and standing queues.

A standing queue, unlike a burst, never empties. Controlled delay (K. Nichols, V. Jacobson,
"Controlling queue delay", ACM Queue 2012; B. Maurer, "Fail at scale", ACM Queue 2015): a queue
stands if its shortest wait within an interval exceeds the target. It then only delays every
request. While the queue stands, requests are admitted up to a wait of twice the target; otherwise
up to their own longest wait.

Callers hold the dispatcher's lock.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from service.engines.contract import BatchCost, TextTask
from service.scheduler.call import PendingCalls
from service.scheduler.pace import RELAXING, WEIGHT, Margin, Pace
from service.scheduler.queue import FairQueue, Slot, Work, nearest

INTERVAL_SECONDS = 0.1
"""Length of an interval."""


class Congestion:
    """Detector of a standing queue of a lane, by the predicted waits of its requests."""

    def __init__(self, target_seconds: float = math.inf) -> None:
        self.standing = False
        self._target = target_seconds
        self._shortest = 0.0
        """Shortest predicted wait of the interval."""
        self._ends = -math.inf
        """`time.monotonic()` at the end of the interval."""

    def most_seconds(self, wait: float, patience: float, now: float) -> float:
        """Return the longest wait for which a request is admitted, after recording its wait.

        Args:
            wait: predicted seconds until the request begins.
            patience: its longest wait by its own deadline and the queue's limit.
            now: `time.monotonic()`.

        """
        if now >= self._ends:
            self.standing = self._shortest > self._target
            self._shortest, self._ends = wait, now + INTERVAL_SECONDS
        self._shortest = min(self._shortest, wait)
        if wait <= self._target:
            self.standing = False
        return min(patience, 2 * self._target) if self.standing else patience


LaneName = Literal["encode", "attention"]

LANE_SHARES: dict[LaneName, float] = {"encode": 3.0, "attention": 1.0}
"""Weights of the lanes' shares of busy time while tasks wait in both: a flood of /attention
leaves /encode 3/4."""
MAP_COST = BatchCost(fixed=8, token=1, padding=1)
"""Cost of batches of maps, which an engine computes one by one: only like lengths are grouped."""
WINDOW_BATCHES = 4
"""Number of full batches in the window from which the texts of a batch are chosen. It bounds how
often a text is passed over for others nearer in length."""


@dataclass
class Lane:
    """Queue of one kind of work, with its share of busy time."""

    name: LaneName
    share: float
    text_pace: Pace = field(default_factory=Pace)
    """Pace of batches of texts. Decompositions and pending work count as tokens of texts."""
    map_pace: Pace = field(default_factory=Pace)
    """Pace of batches of `maps`."""
    cost: BatchCost = field(default_factory=BatchCost)
    """Cost of batches of texts, by which texts are grouped."""
    batch_seconds: float = 0.0
    """Mean seconds of a batch of any kind; 0 before the first."""
    margin: Margin = field(default_factory=Margin)
    congestion: Congestion = field(default_factory=Congestion)
    served: float = 0.0
    """Busy seconds divided by the share; the lane with the smaller value goes first."""
    pending: PendingCalls = field(default_factory=PendingCalls)
    """Work that admitted requests still have to submit."""
    estimates: PendingCalls = field(default_factory=PendingCalls)
    """Tokens of admitted texts that are being tokenised."""
    texts: FairQueue = field(default_factory=FairQueue)
    """Waiting texts in fair order."""
    maps: dict[Slot[object], None] = field(default_factory=dict)
    """Waiting maps of computed texts, oldest first. They go before all texts, so that running
    requests finish before new ones begin."""
    map_tokens: int = 0
    """Tokens of `maps`."""

    def expect(self, texts: Sequence[tuple[int, float]], maps: Sequence[tuple[int, float]]) -> None:
        """Initialise the forecasts by measured tokens and seconds of batches."""
        for pace, measured in ((self.text_pace, texts), (self.map_pace, maps)):
            for tokens, seconds in measured:
                pace.account(tokens, seconds)
        for _, seconds in texts:
            self._average(seconds)

    def account(self, slots: Sequence[Slot[object]], seconds: float) -> None:
        """Update the forecasts by the seconds of a computed batch."""
        self._average(seconds)
        tokens = sum([slot.tokens for slot in slots])
        if slots[0].queue is None:
            self.map_pace.account(tokens, seconds)
        elif all(isinstance(slot.task, TextTask) for slot in slots):
            self.text_pace.account(tokens, seconds)

    def relax(self) -> None:
        """Reduce the forecasts a little, as no batch comes to correct them."""
        self.text_pace.relax()
        self.map_pace.relax()
        self.batch_seconds *= 1 - RELAXING

    def seconds(self, text_tokens: int, max_batch_tokens: int) -> float:
        """Return the predicted seconds of a worker for all maps and some tokens of texts."""
        seconds = self.text_pace.predict(text_tokens, max_batch_tokens)
        if self.map_tokens:
            seconds += self.map_pace.predict(self.map_tokens, max_batch_tokens)
        return seconds

    def _average(self, seconds: float) -> None:
        weight = WEIGHT if self.batch_seconds else 1.0
        self.batch_seconds += weight * (seconds - self.batch_seconds)

    @property
    def queued_tokens(self) -> int:
        """Tokens of all waiting tasks."""
        return self.texts.tokens + self.map_tokens

    @property
    def queued_texts(self) -> int:
        """Number of waiting tasks."""
        return self.texts.texts + len(self.maps)

    @property
    def first_tokens(self) -> int:
        """Tokens of the first text in fair order; 0 without texts, or if maps go before it."""
        return 0 if self.maps or not self.texts.texts else self.texts.window(1)[0].tokens

    def push(self, work: Work[object], *, maps: bool = False) -> None:
        """Queue all tasks of some work, as maps of computed texts or in fair order."""
        if maps:
            self.maps |= dict.fromkeys(work.slots)
            self.map_tokens += work.tokens
        else:
            self.texts.push(work)

    def remove(self, slot: Slot[object]) -> None:
        """Remove a task that is computed now or cancelled."""
        if slot.queue:
            self.texts.remove(slot)
            return
        del self.maps[slot]
        self.map_tokens -= slot.tokens
        slot.waiting = False
        slot.work.waiting -= 1

    def clear(self) -> set[Work[object]]:
        """Remove all waiting tasks, and return their work."""
        slots = [*self.maps, *self.texts.window(self.texts.tokens)]
        for slot in slots:
            self.remove(slot)
        return {slot.work for slot in slots}

    def take(self, max_batch_tokens: int, *, beside: bool = False) -> list[Slot[object]]:
        """Take a batch: the first text in fair order, and texts nearest to its length; or nothing.

        A text longer than `max_batch_tokens` is a batch of its own. Tasks that are due are removed
        from the queue and left out of the batch. For `beside` see `FairQueue.begin`.
        """
        now = time.monotonic()
        while self.maps or self.texts.texts:
            if self.maps:
                window, cost = [*itertools.islice(self.maps, max_batch_tokens)], MAP_COST
            else:
                window, cost = self.texts.window(WINDOW_BATCHES * max_batch_tokens), self.cost
            if late := [slot for slot in window if slot.work.due <= now]:
                for slot in late:
                    self.remove(slot)
                continue
            batch = nearest(window, max_batch_tokens, cost)
            remove = self.remove
            if not self.maps:
                self.texts.begin(batch, beside=beside)
                remove = self.texts.remove
            for slot in batch:
                remove(slot)
                if not slot.work.begun:
                    slot.work.begin()
            return batch
        return []
