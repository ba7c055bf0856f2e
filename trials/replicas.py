"""Replicas behind the shipped balancer: throughput, `kill -9` of one, and SIGTERM."""

from __future__ import annotations

import signal

from trials.balanced import Group, Loss, group
from trials.gates import Gate, Scale, at_least, at_most, exactly, main

LOAD = 0.4
CLEAN_SECONDS, BACK_SECONDS, LINEAR = 10.0, 30.0, 0.95


def killed(replicas: Group, scale: Scale, capacity: float, *, resend: bool) -> list[Gate]:
    """Kill one of two replicas several times, each in turn."""
    count = scale.of(10, 1)
    losses = [replicas.lose(number % 2, LOAD * capacity) for number in range(count)]
    lost = sum(one.lost for one in losses)
    name = f"kill -9 of one of two at {LOAD:g} of capacity ×{count}"
    most = 0 if resend else sum(one.at_risk for one in losses)
    kind = "lost" if resend else "lost without the balancer's second attempt"
    return [
        at_most(f"{name}: {kind}, of {sum(one.at_risk for one in losses)} in flight", most, lost),
        exactly("… lost by those who came later", 0, sum(one.late for one in losses)),
        at_least("… answered", 0.9, _share(losses)),
        at_most("… routing clean", CLEAN_SECONDS * scale.slack, _most(losses, "clean"), " s"),
        at_most("… both replicas back", BACK_SECONDS * scale.slack, _most(losses, "back"), " s"),
    ]


def _share(losses: list[Loss]) -> float:
    return sum(one.outcomes["right"] for one in losses) / sum(
        len(one.result.outcomes) for one in losses
    )


def _most(losses: list[Loss], which: str) -> float:
    return max(getattr(one, f"{which}_seconds") for one in losses)


def drained(replicas: Group, scale: Scale, capacity: float) -> list[Gate]:
    """Stop one of two replicas by SIGTERM, each in turn."""
    count = scale.of(5, 1)
    ends = [replicas.drain(number % 2, LOAD * capacity) for number in range(count)]
    outcomes = {outcome for result, _ in ends for outcome in result.outcomes}
    codes = {code for _, code in ends}
    fine = {0, -int(signal.SIGTERM)}
    return [
        exactly(f"SIGTERM to one of two ×{count}: outcomes", {"right"}, outcomes),
        Gate("… exit code", "0, or by that signal", str(codes), codes <= fine),
    ]


def run(scale: Scale) -> list[Gate]:
    """Return the gates of docs/operations.md about the balancer."""
    seconds = float(scale.of(15, 2))
    rates = {}
    with group() as replicas:
        for count in (1, 2, 4)[: scale.of(3, 2)]:
            replicas.grow(count)
            rates[count] = replicas.throughput(seconds)
    gates = [
        at_least(
            f"throughput of {count} / {count} times one's",
            LINEAR / scale.slack,
            rate / count / rates[1],
        )
        for count, rate in rates.items()
        if count > 1
    ]
    for resend in (True, False):
        with group(resend=resend) as replicas:
            replicas.grow(2)
            gates += killed(replicas, scale, rates[2], resend=resend)
            if resend:
                after = replicas.throughput(seconds)
                gates.append(
                    at_least("… throughput afterwards", LINEAR / scale.slack, after / rates[2])
                )
                gates += drained(replicas, scale, rates[2])
    return gates


if __name__ == "__main__":
    main(__doc__, replicas=run)
