"""Machines, memory, bandwidth and money for a stream of requests, or for a corpus."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from benchmarks.capacity.simulation import Node

SECONDS_OF_MONTH = 30 * 24 * 3600


@dataclass(frozen=True)
class Machine:
    """One replica's machine, as its owner pays for it."""

    node: Node
    memory_bytes: int
    dollars_an_hour: float


@dataclass(frozen=True)
class Traffic:
    """Requests of a text each."""

    rate: float
    """A second."""
    tokens: float
    """Of a text, on the mean."""
    request_bytes: int
    reply_bytes: int


@dataclass(frozen=True)
class Fleet:
    """What serves a stream of requests."""

    replicas: int
    """With those that are to spare."""
    spare: int
    """Of them, those that may be away."""
    memory_bytes: int
    received_bits: float
    """A second."""
    sent_bits: float
    in_flight: float
    """Requests, on the mean, by Little's law."""
    dollars_a_month: float


def fleet(
    machine: Machine,
    traffic: Traffic,
    *,
    utilization: float,
    latency_seconds: float,
    spare_share: float,
) -> Fleet:
    """The smallest fleet that stays below a utilization while some of its machines are away.

    Args:
        machine: of each replica.
        traffic: of the whole fleet.
        utilization: share of a replica's capacity that is used at most, 0 … 1.
        latency_seconds: of a request, on the mean at that utilization.
        spare_share: of the machines, those that may be away at once: a zone, or a rolling update.

    """
    working = math.ceil(traffic.rate / (utilization * machine.node.capacity(traffic.tokens)))
    replicas = max(working + 1, math.ceil(working / (1 - spare_share)))
    return Fleet(
        replicas,
        replicas - working,
        replicas * machine.memory_bytes,
        8 * traffic.rate * traffic.request_bytes,
        8 * traffic.rate * traffic.reply_bytes,
        traffic.rate * latency_seconds,
        replicas * machine.dollars_an_hour * SECONDS_OF_MONTH / 3600,
    )


@dataclass(frozen=True)
class Corpus:
    """What the vectors of a corpus take."""

    machine_hours: float
    days: float
    """On so many machines as were given."""
    dollars: float
    stored_bytes: int
    """Of one float32 vector a text."""


def corpus(
    machine: Machine,
    *,
    texts: int,
    tokens: float,
    machines: int,
    efficiency: float,
    features: int,
) -> Corpus:
    """The work of encoding each text of a corpus once, from files: nothing waits for a front.

    Args:
        machine: of each worker.
        texts: in all.
        tokens: of a text, on the mean.
        machines: that work at the same time.
        efficiency: share of a machine's capacity that a job over files reaches, 0 … 1.
        features: of a vector.

    """
    rate = efficiency * dataclasses.replace(machine.node, front_seconds=0.0).capacity(tokens)
    hours = texts / rate / 3600
    return Corpus(
        hours, hours / machines / 24, hours * machine.dollars_an_hour, 4 * features * texts
    )
