"""Lanes: queues of one kind of work, batches of their entries, and standing queues.

A standing queue, unlike a burst, never empties. Controlled delay (K. Nichols, V. Jacobson,
"Controlling queue delay", ACM Queue 2012; B. Maurer, "Fail at scale", ACM Queue 2015): a queue
stands if its shortest wait within an interval exceeds the target. It then only delays every
request. While the queue stands, requests are admitted up to a wait of twice the target; otherwise
up to their own longest wait.

Callers hold the dispatcher's lock.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from service.engines.contract import BatchCost, TextTask
from service.scheduler.fairness import FairQueue
from service.scheduler.pace import RELAXING, WEIGHT, Margin, Pace
from service.scheduler.promises import Promises
from service.scheduler.submission import Entry, Submission

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

    def observe(self, wait: float, now: float) -> None:
        """Record the predicted seconds until a new request begins, at `time.monotonic()` of now."""
        if now >= self._ends:
            self.standing = self._shortest > self._target
            self._shortest, self._ends = wait, now + INTERVAL_SECONDS
        self._shortest = min(self._shortest, wait)
        if wait <= self._target:
            self.standing = False

    def most_seconds(self, patience: float) -> float:
        """Return the longest wait for which a request is admitted.

        `patience` is its longest wait by its own deadline and the queue's limit.
        """
        return min(patience, 2 * self._target) if self.standing else patience


LaneName = Literal["encode", "attention"]

LANE_SHARES: dict[LaneName, float] = {"encode": 3.0, "attention": 1.0}
"""Weights of the lanes' shares of busy time while entries wait in both: a flood of /attention
leaves /encode 3/4."""
MAX_PADDING_SHARE = 0.5
"""Maximum share of padding in the attention grid of a batch, which bounds the memory of a batch."""
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
    """Pace of batches of texts. Decompositions and promised work count as tokens of texts."""
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
    promises: Promises = field(default_factory=Promises)
    """Work that admitted requests still have to submit."""
    places: Promises = field(default_factory=Promises)
    """Tokens of admitted texts that are being tokenised."""
    texts: FairQueue = field(default_factory=FairQueue)
    """Waiting texts in fair order."""
    maps: OrderedDict[int, Entry[object]] = field(default_factory=OrderedDict)
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

    def account(self, entries: Sequence[Entry[object]], seconds: float) -> None:
        """Update the forecasts by the seconds of a computed batch."""
        self._average(seconds)
        tokens = sum(entry.task.tokens for entry in entries)
        if entries[0].number < 0:
            self.map_pace.account(tokens, seconds)
        elif all(isinstance(entry.task, TextTask) for entry in entries):
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
        """Tokens of all waiting entries."""
        return self.texts.tokens + self.map_tokens

    @property
    def queued_texts(self) -> int:
        """Number of waiting entries."""
        return len(self.texts) + len(self.maps)

    @property
    def first_tokens(self) -> int:
        """Tokens of the first text in fair order; 0 without texts, or if maps go before it."""
        if self.maps:
            return 0
        return next((entry.task.tokens for entry in self.texts), 0)

    def push(self, submission: Submission[object]) -> None:
        """Queue all tasks of a submission."""
        for entry in submission.entries:
            if entry.number < 0:
                self.maps[entry.number] = entry
                self.map_tokens += entry.task.tokens
        if texts := [entry for entry in submission.entries if entry.number >= 0]:
            self.texts.push(submission, texts)

    def remove(self, entry: Entry[object]) -> None:
        """Remove an entry that is computed now or cancelled."""
        if entry.number < 0:
            del self.maps[entry.number]
            self.map_tokens -= entry.task.tokens
        else:
            self.texts.remove(entry)
        entry.waiting = False

    def clear(self) -> list[Entry[object]]:
        """Remove and return all waiting entries."""
        entries = [*self.maps.values(), *self.texts]
        for entry in entries:
            self.remove(entry)
        return entries

    def take(self, max_batch_tokens: int, *, beside: bool = False) -> list[Entry[object]]:
        """Take a batch: the first text in fair order, and texts nearest to its length; or nothing.

        A text longer than `max_batch_tokens` is a batch of its own. Entries that are due are
        removed from the queue and left out of the batch. For `beside` see `FairQueue.begin`.
        """
        while self.queued_texts:
            window = [*self.maps.values()] or self.texts.first(WINDOW_BATCHES * max_batch_tokens)
            late = [entry for entry in window if entry.submission.due <= time.monotonic()]
            for entry in late:
                self.remove(entry)
            if not late:
                cost = MAP_COST if self.maps else self.cost
                batch = nearest(window, max_batch_tokens, cost)
                if not self.maps:
                    self.texts.begin(batch, beside=beside)
                for entry in batch:
                    self.remove(entry)
                    entry.submission.begun = True
                return batch
        return []


def nearest(
    window: Sequence[Entry[object]], max_batch_tokens: int, cost: BatchCost
) -> list[Entry[object]]:
    """Return the window's first entry, and entries nearest to its length within the budget.

    Of these, each entry is taken with which a token of the batch costs no more than without it. An
    entry of another client is left out unless that client's first entry is in the batch.
    Otherwise a client's long texts would use its share, and its single texts would wait for them.
    """
    first = window[0].task.tokens
    batch: list[Entry[object]] = []
    heads: dict[str, Entry[object]] = {}
    for entry in window:
        heads.setdefault(entry.submission.caller.client, entry)
    taken = {window[0].submission.caller.client}
    longest = real = 0
    total = 0.0
    for entry in sorted(
        window, key=lambda entry: (abs(entry.task.tokens - first), entry.task.tokens)
    ):
        client = entry.submission.caller.client
        if client not in taken and entry is not heads[client]:
            continue
        length = entry.task.tokens
        grid, tokens = max(longest, length) * (len(batch) + 1), real + length
        padding = grid - tokens
        if batch and (tokens > max_batch_tokens or padding > MAX_PADDING_SHARE * grid):
            continue
        spent = cost.of(tokens, padding)
        if batch and spent * real > total * tokens:
            continue
        batch.append(entry)
        taken.add(client)
        longest, real, total = max(longest, length), tokens, spent
    return batch
