"""Fair queue: waiting texts in an order that is fair between clients and between their requests.

All waiting clients get equal shares of tokens, and all waiting requests of a client get equal
shares of the client's tokens. A list of hundreds of texts is therefore computed in slices between
single texts of other requests, which are computed in the order of their arrival.

Start-time fair queueing (P. Goyal, H. M. Vin, H. Cheng, SIGCOMM 1996): a text's start time is the
virtual time at which its request arrived, or the end of the previous text of the request. The text
with the smallest start time goes first. The virtual time of a client advances by the tokens
computed for the client, divided by the number of its waiting requests; it never falls back.
"""

from __future__ import annotations

import asyncio
import copy
import heapq
import itertools
import math
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Generic

from typing_extensions import TypeVar

from service.engines.contract import BatchCost, Output, Task
from service.errors import ServiceError
from service.scheduler.call import Call

MAX_PADDING_SHARE = 0.5
"""Maximum share of padding in the attention grid of a batch, which bounds the memory of a batch."""
EXACT_CLIENTS = 16
"""Maximum number of other clients whose shares are summed exactly for a prediction."""

Value = TypeVar("Value", default=Output)
Value_co = TypeVar("Value_co", covariant=True, default=Output)
Reduce = Callable[[Output], Value]
"""Function from a task's output to its value, called in the worker's thread."""
_place, _tokens = attrgetter("place"), attrgetter("tokens")
_turn = attrgetter("served", "number")


class Work(Generic[Value_co]):
    """Tasks of one call that are answered or fail together, on the event loop of the caller."""

    __slots__ = ("begun", "call", "due", "future", "left", "next_tokens", "predicted_seconds",
                 "queued_at", "slots", "tokens", "waiting")  # fmt: skip

    def __init__(
        self,
        tasks: Sequence[Task],
        call: Call,
        reduce: Sequence[Reduce[Value_co]] = (),
        wait_seconds: float | None = None,
    ) -> None:
        """Describe at least one task, of which the first begins within `wait_seconds`.

        Work without `wait_seconds` continues a call.
        """
        self.call = call
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queued_at = time.monotonic()
        self.begun = wait_seconds is None
        """Whether a task of the call is being computed or was computed."""
        self.due = call.finish_by
        """`time.monotonic()` at which the work is cancelled: later once it has begun."""
        if wait_seconds is not None:
            self.due = min(self.due, self.queued_at + wait_seconds)
        self.predicted_seconds = 0.0
        """Predicted seconds until the end, at admission."""
        reductions = reduce or itertools.repeat(None)
        sizes = [*map(_tokens, tasks)]
        self.slots = list(map(Slot, itertools.repeat(self), tasks, reductions, sizes))
        self.left = self.waiting = len(self.slots)
        """Numbers of tasks that are not computed, and that wait in the queue."""
        self.tokens = sum(sizes)
        self.next_tokens: float = sizes[0]
        """Tokens of the next waiting task; their mean once tasks were taken."""

    def fail(self, error: ServiceError) -> None:
        """Fail with a copy of an error, unless the work is done."""
        if not self.future.done():
            self.future.set_exception(copy.copy(error))


@dataclass(eq=False, repr=False, slots=True)
class Slot(Generic[Value_co]):
    """Task in a queue, and its result once it is computed."""

    work: Work[Value_co]
    task: Task
    reduce: Reduce[Value_co] | None
    tokens: int
    waiting: bool = True
    queue: ClientQueue = field(init=False)
    place: tuple[float, int] = field(init=False)
    """Virtual time of its start in fair queueing, and its number among equal starts."""
    queue_seconds: float = field(init=False)
    inference_seconds: float = field(init=False)
    value: Value_co = field(init=False)
    """The task's `Output`, or the reduction of it."""


@dataclass(eq=False, slots=True)
class ClientQueue:
    """Waiting texts of one client, in fair order between its requests; or all waiting maps."""

    served: float
    """Tokens computed for the client, plus the value at which the client started."""
    number: int = 0
    tokens: int = 0
    """Tokens of all waiting tasks."""
    virtual_time: float = 0.0
    advance: float = 0.0
    """Increase of the virtual time by the last batch, added when the next is taken."""
    order: list[Slot[object]] = field(default_factory=list)
    """Waiting tasks by their place."""
    requests: int = 0
    """Number of waiting requests."""
    lists: int = 0
    """Number of requests with several waiting texts."""
    first_tokens: float = 0.0
    """Tokens of the next text of each request, summed."""


class FairQueue:
    """Waiting tasks of a lane. The caller holds the lock of the lanes."""

    def __init__(self) -> None:
        self.queued_tokens = self.queued_texts = 0
        """Tokens of all waiting texts and maps, and their number."""
        self.maps = ClientQueue(-math.inf)
        """Waiting maps of computed texts, oldest first, as of a client whose turn is always first:
        running requests finish before new ones begin."""
        self._clients: dict[str, ClientQueue] = {}
        """Clients with waiting texts, by name."""
        self._turns: list[ClientQueue] = []
        """Clients, and the maps if any wait, in the order of their turns."""
        self._served = 0.0
        """`served` of the client last computed, at which a new client starts without credit."""
        self._numbers = itertools.count(1)

    @property
    def text_tokens(self) -> int:
        """Tokens of all waiting texts."""
        return self.queued_tokens - self.maps.tokens

    def push(self, work: Work[object], *, maps: bool = False) -> None:
        """Queue all tasks of some work, as maps of computed texts or in fair order."""
        client = work.call.client
        queue = self.maps if maps else self._clients.get(client)
        if queue is None:
            queue = self._clients[client] = ClientQueue(self._served, next(self._numbers))
        if not queue.order:
            insort(self._turns, queue, key=_turn)
        start = queue.virtual_time
        for slot in work.slots:
            slot.queue, slot.place = queue, (0.0 if maps else start, next(self._numbers))
            insort(queue.order, slot, key=_place)
            start += slot.tokens
        queue.tokens += work.tokens
        queue.requests += 1
        queue.lists += work.waiting > 1
        queue.first_tokens += work.next_tokens
        self.queued_tokens += work.tokens
        self.queued_texts += work.waiting

    def remove(self, slot: Slot[object]) -> None:
        """Remove a task that is computed now or cancelled."""
        queue, work = slot.queue, slot.work
        del queue.order[bisect_left(queue.order, slot.place, key=_place)]
        slot.waiting = False
        work.waiting -= 1
        queue.tokens -= slot.tokens
        self.queued_tokens -= slot.tokens
        self.queued_texts -= 1
        queue.first_tokens -= work.next_tokens
        if work.waiting:
            queue.lists -= work.waiting == 1
            work.next_tokens = work.tokens / len(work.slots)
            queue.first_tokens += work.next_tokens
            return
        queue.requests -= 1
        if not queue.order:
            del self._turns[bisect_left(self._turns, _turn(queue), key=_turn)]
            if queue is not self.maps:
                del self._clients[work.call.client]

    def clear(self) -> set[Work[object]]:
        """Remove all waiting tasks, and return their work."""
        slots = self.window(self.queued_tokens)
        for slot in slots:
            self.remove(slot)
        return {slot.work for slot in slots}

    def window(self, tokens: int) -> list[Slot[object]]:
        """Return the first tasks in fair order with at most `tokens` tokens; at least one task.

        It is the order in which they are computed if no more tasks arrive.
        """
        window: list[Slot[object]] = []
        total, turns = 0, iter(self._turns)
        following = next(turns, None)
        ahead: list[tuple[float, int, ClientQueue, int]] = []
        """Clients with texts in the window, and the index of their next one."""
        while following or ahead:
            if following and (not ahead or _turn(following) < ahead[0]):
                (served, number), queue, index = _turn(following), following, 0
                following = next(turns, None)
            else:
                served, number, queue, index = heapq.heappop(ahead)
            end = index + (1 if following or ahead else tokens)
            for slot in queue.order[index:end]:
                total += slot.tokens
                if total > tokens and window:
                    return window
                window.append(slot)
                served += slot.tokens
            if end < len(queue.order):
                heapq.heappush(ahead, (served, number, queue, end))
        return window

    def take(self, batch: Sequence[Slot[object]], *, beside: bool = False) -> None:
        """Remove a batch that is computed now: maps, or texts with the first in fair order first.

        Beside running batches, virtual time does not advance before their end.
        """
        first = batch[0].queue
        self._served = max(self._served, first.served)
        if not beside:
            first.virtual_time = max(first.virtual_time + first.advance, batch[0].place[0])
            first.advance = 0.0
        clients = {slot.queue for slot in batch}
        for queue in clients:
            del self._turns[bisect_left(self._turns, _turn(queue), key=_turn)]
        for slot in batch:
            slot.queue.served += slot.tokens
            slot.queue.advance += slot.tokens / slot.queue.requests
        for queue in clients:
            insort(self._turns, queue, key=_turn)
        for slot in batch:
            self.remove(slot)
            work = slot.work
            work.begun, work.due = True, work.call.finish_by

    def tokens_before(self, client: str, tokens: int = 0) -> int:
        """Return the tokens that are computed before a text of a request that arrives now.

        `tokens` are those of the request's texts before the text; 0 for its first text.
        """
        own = self._clients.get(client)
        before = min(own.tokens, own.first_tokens + own.lists * tokens) if own else 0
        share, others = before + tokens, len(self._clients) - (own is not None)
        if not share or not others:
            return round(share)
        if others > EXACT_CLIENTS:
            queued = self.text_tokens - (own.tokens if own else 0)
            return round(share + min(queued, others * share))
        waiting = [queue.tokens for queue in self._clients.values() if queue is not own]
        return round(share + sum([min(tokens, share) for tokens in waiting]))


def nearest(
    window: Sequence[Slot[object]], max_batch_tokens: int, cost: BatchCost
) -> list[Slot[object]]:
    """Return the window's first text, and texts nearest to its length within the budget.

    Of these, each text is taken with which a token of the batch costs no more than without it. A
    text of another client is left out unless that client's first text is in the batch. Otherwise a
    client's long texts would use its share, and its single texts would wait for them.
    """
    batch = [window[0]]
    if len(window) == 1:
        return batch
    longest = real = first = window[0].tokens
    lengths = [*map(_tokens, window)]
    shortest, clients = min(lengths), {window[0].queue}
    spent = cost.of(real, 0)
    # of equal distances the shorter goes first, of equal lengths the earlier
    distances = [2 * (n - first) if n > first else 2 * (first - n) - 1 for n in lengths]
    for index in sorted(range(len(window)), key=distances.__getitem__)[1:]:
        tokens = real + lengths[index]
        if tokens > max_batch_tokens:
            if real + shortest > max_batch_tokens:
                break
            continue
        slot = window[index]
        if slot.queue not in clients and slot.queue.order[0] is not slot:
            continue
        most = max(longest, lengths[index])
        grid = most * (len(batch) + 1)
        padding = grid - tokens
        total = cost.fixed + cost.token * tokens + cost.padding * padding
        if padding > MAX_PADDING_SHARE * grid or total * real > spent * tokens:
            continue
        batch.append(slot)
        clients.add(slot.queue)
        longest, real, spent = most, tokens, total
    return batch
