"""Occlusions that come at once, of a fresh service and of one that is warm, on the real engine.

Who has time for at least half of what an idle service would compute is answered, the others are
refused at once, and reported when there will be room.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

from testing.client import Reply, ask
from trials.gates import Gate, Scale, at_least, at_most, exactly, main
from trials.servers import Service, serve

AT_ONCE, FLOOD = 8, 48
LEAST_SHARE = 0.5 / 1.3
"""Least share of an answer: half, by a forecast that is wrong by a factor of 1.3."""
REFUSED_SECONDS = 0.5


class Answer(NamedTuple):
    """The reply to one occlusion, and the seconds until it was complete."""

    reply: Reply
    seconds: float

    @property
    def share(self) -> float:
        """Computed part of the losses, 0 … 1."""
        (found,) = self.reply.json()["results"]
        return float(found["computed"]["occlusion"] / sum(map(len, found["occlusion"])))


def occlusion(scale: Scale) -> object:
    """Two texts of 242 tokens of the default model, or of 26."""
    words = "the water runs down the hill and on to the green sea " * 20
    one = " ".join(words.split()[: scale.of(240, 24)])
    return {"inputs": [[one, one.replace("water", "river")]], "include": ["occlusion"]}


async def at_once(service: Service, requests: int, scale: Scale) -> list[Answer]:
    """Send occlusions, each on a connection of its own."""

    async def one() -> Answer:
        began = time.monotonic()
        reply = await ask(service.port, "/explain", occlusion(scale))
        return Answer(reply, time.monotonic() - began)

    return list(await asyncio.gather(*(one() for _ in range(requests))))


def gates_of(name: str, answers: Sequence[Answer], scale: Scale) -> list[Gate]:
    """Return the gates of requests that came together."""
    answered = [each for each in answers if each.reply.status == 200]
    refused = [each for each in answers if each.reply.status == 429]
    reported = [int(each.reply.header("retry-after") or 0) for each in refused]
    shares = [each.share for each in answered]
    gates = [
        exactly(f"{name}: other than 200 and 429", 0, len(answers) - len(answered) - len(refused)),
        at_least(f"{name}: answered", 1, len(answered)),
        at_least(
            f"… the least share of an answer, {len(answered)} answers",
            LEAST_SHARE / scale.slack,
            min(shares, default=0.0),
        ),
    ]
    if refused:
        slowest = max(each.seconds for each in refused)
        gates += [
            at_most(
                f"… refused after, {len(refused)} refusals",
                REFUSED_SECONDS * scale.slack,
                slowest,
                " s",
            ),
            at_least("… least retry-after", 1, min(reported), " s"),
        ]
    return gates


async def trial(scale: Scale) -> list[Gate]:
    """Send eight to a fresh service, one alone, eight again, and a flood with one beside it."""
    async with serve() as service:
        cold = await at_once(service, AT_ONCE, scale)
        gates = gates_of(f"{AT_ONCE} of a fresh service", cold, scale)
        (alone,) = await at_once(service, 1, scale)
        gates += gates_of("one alone", [alone], scale)
        warm = await at_once(service, AT_ONCE, scale)
        gates += gates_of(f"{AT_ONCE} of a warm one", warm, scale)
        counts = [sum(each.reply.status == 200 for each in found) for found in (cold, warm)]
        difference = abs(counts[0] - counts[1])
        gates.append(at_most("answered cold and warm, difference", 1 * scale.slack, difference))
        flood = asyncio.create_task(at_once(service, FLOOD, scale))
        gates += await told_when(service, scale)
        gates += gates_of(f"a flood of {FLOOD}", await flood, scale)
    return gates


async def told_when(service: Service, scale: Scale) -> list[Gate]:
    """Return the gate of a request beside a flood that is sent again after its Retry-After."""
    await asyncio.sleep(1)
    (answer,) = await at_once(service, 1, scale)
    if answer.reply.status != 429:
        return []
    seconds = int(answer.reply.header("retry-after") or 0)
    await asyncio.sleep(seconds)
    (again,) = await at_once(service, 1, scale)
    return [exactly(f"status after the retry-after of {seconds} s", 200, again.reply.status)]


def run(scale: Scale) -> list[Gate]:
    """The gate of explanations that come at once."""
    return asyncio.run(trial(scale))


if __name__ == "__main__":
    main(__doc__, explanations=run)
