"""A lane: what waits for one kind of work, and the batches that are made of it.

Nothing here locks.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from service.engines.contract import TextTask
from service.scheduler.congestion import Congestion
from service.scheduler.fairness import FairQueue
from service.scheduler.pace import RELAXING, WEIGHT, Margin, Pace
from service.scheduler.promises import Promises
from service.scheduler.submission import Entry, Submission

LaneName = Literal["encode", "attention"]

LANE_SHARES: dict[LaneName, float] = {"encode": 3.0, "attention": 1.0}
"""How busy time is divided while both lanes wait: a flood of /attention leaves /encode 3/4."""
MAX_PADDING_SHARE = 0.1
"""A batch takes no text that would make more than this share of attention's grid padding."""
WINDOW_BATCHES = 4
"""Texts of one batch are among those that fill so many: a text is passed over a few times at most,
and what waits longer is no reason to compute it later."""


@dataclass
class Lane:
    """A queue with its share of busy time."""

    name: LaneName
    share: float
    text_pace: Pace = field(default_factory=Pace)
    """Pace of batches of texts, in whose tokens decompositions and promised work are counted."""
    map_pace: Pace = field(default_factory=Pace)
    """Pace of batches of `maps`."""
    batch_seconds: float = 0.0
    """Mean seconds of a batch of any kind; 0 before the first."""
    margin: Margin = field(default_factory=Margin)
    congestion: Congestion = field(default_factory=Congestion)
    served: float = 0.0
    """Busy seconds so far, divided by the share; the lane with less goes first."""
    promises: Promises = field(default_factory=Promises)
    """What requests that were admitted will still submit."""
    places: Promises = field(default_factory=Promises)
    """Tokens of texts that were admitted and are being tokenised."""
    texts: FairQueue = field(default_factory=FairQueue)
    """What waits in turn."""
    maps: OrderedDict[int, Entry] = field(default_factory=OrderedDict)
    """Maps of texts that were computed: they go before all texts, the oldest first, so that no
    more is begun than is finished."""
    map_tokens: int = 0

    def expect(self, texts: Sequence[tuple[int, float]], maps: Sequence[tuple[int, float]]) -> None:
        """Take the tokens and seconds of batches that were measured beforehand."""
        for pace, measured in ((self.text_pace, texts), (self.map_pace, maps)):
            for tokens, seconds in measured:
                pace.account(tokens, seconds)
        for _, seconds in texts:
            self._average(seconds)

    def account(self, entries: Sequence[Entry], seconds: float) -> None:
        """Take the seconds of a batch that was computed, for the next forecasts."""
        self._average(seconds)
        tokens = sum(entry.task.tokens for entry in entries)
        if entries[0].number < 0:
            self.map_pace.account(tokens, seconds)
        elif all(isinstance(entry.task, TextTask) for entry in entries):
            self.text_pace.account(tokens, seconds)

    def relax(self) -> None:
        """Trust the forecasts a little less, as no batch comes to correct them."""
        self.text_pace.relax()
        self.map_pace.relax()
        self.batch_seconds *= 1 - RELAXING

    def seconds(self, text_tokens: int, max_batch_tokens: int) -> float:
        """Return the forecast of a worker's seconds for all maps and some tokens of texts."""
        maps = self.map_pace.predict(self.map_tokens, max_batch_tokens)
        return maps + self.text_pace.predict(text_tokens, max_batch_tokens)

    def _average(self, seconds: float) -> None:
        weight = WEIGHT if self.batch_seconds else 1.0
        self.batch_seconds += weight * (seconds - self.batch_seconds)

    @property
    def queued_tokens(self) -> int:
        """Tokens of all that waits."""
        return self.texts.tokens + self.map_tokens

    @property
    def queued_texts(self) -> int:
        """Texts that wait, and maps."""
        return len(self.texts) + len(self.maps)

    @property
    def first_tokens(self) -> int:
        """Tokens of the text whose turn it is; 0 where none waits, or maps go before it."""
        if self.maps:
            return 0
        return next((entry.task.tokens for entry in self.texts), 0)

    def push(self, submission: Submission) -> None:
        """Queue all tasks of a submission."""
        for entry in submission.entries:
            if entry.number < 0:
                self.maps[entry.number] = entry
                self.map_tokens += entry.task.tokens
        if texts := [entry for entry in submission.entries if entry.number >= 0]:
            self.texts.push(submission, texts)

    def remove(self, entry: Entry) -> None:
        """The entry no longer waits: it was taken, or its client left."""
        if entry.number < 0:
            del self.maps[entry.number]
            self.map_tokens -= entry.task.tokens
        else:
            self.texts.remove(entry)
        entry.waiting = False

    def clear(self) -> list[Entry]:
        """Everything that waited; nothing does any more."""
        entries = [*self.maps.values(), *self.texts]
        for entry in entries:
            self.remove(entry)
        return entries

    def take(self, max_batch_tokens: int, *, beside: bool = False) -> list[Entry]:
        """The first text in fair order and those nearest to its length, within the budget.

        What should have begun by now leaves the queue and is not in the batch. What goes `beside`
        the batches before it does not wait for any of them.
        """
        while self.queued_texts:
            window = [*self.maps.values()] or self.texts.first(WINDOW_BATCHES * max_batch_tokens)
            late = [entry for entry in window if entry.submission.due <= time.monotonic()]
            for entry in late:
                self.remove(entry)
            if not late:
                batch = nearest(window, max_batch_tokens)
                if not self.maps:
                    self.texts.begin(batch, beside=beside)
                for entry in batch:
                    self.remove(entry)
                    entry.submission.begun = True
                return batch
        return []


def nearest(window: Sequence[Entry], max_batch_tokens: int) -> list[Entry]:
    """A window's first entry, and those nearest to its length that a batch has room for."""
    first = window[0].task.tokens
    batch: list[Entry] = []
    longest = real = 0
    for entry in sorted(
        window, key=lambda entry: (abs(entry.task.tokens - first), entry.task.tokens)
    ):
        length = entry.task.tokens
        grid = max(longest, length) * (len(batch) + 1)
        full = batch and real + length > max_batch_tokens
        if not full and grid - real - length <= MAX_PADDING_SHARE * grid:
            batch.append(entry)
            longest, real = max(longest, length), real + length
    return batch
