"""Machines, memory, bandwidth and money for a stream of requests, or for a corpus."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from benchmarks.capacity.simulation import Node

SECONDS_OF_MONTH = 30 * 24 * 3600


@dataclass(frozen=True)
class Machine:
    """Machine of one replica, and its price."""

    node: Node
    memory_bytes: int
    dollars_an_hour: float


@dataclass(frozen=True)
class Traffic:
    """Requests of a text each."""

    rate: float
    """Requests a second."""
    tokens: float
    """Mean tokens of a text."""
    request_bytes: int
    reply_bytes: int


@dataclass(frozen=True)
class Fleet:
    """Replicas that serve a stream of requests, and their resources."""

    replicas: int
    """Number of replicas, spare ones included."""
    spare: int
    """Number of replicas that may be away at once."""
    memory_bytes: int
    received_bits: float
    """Bits received a second."""
    sent_bits: float
    """Bits sent a second."""
    in_flight: float
    """Mean number of requests in flight, by Little's law."""
    dollars_a_month: float


def fleet(
    machine: Machine,
    traffic: Traffic,
    *,
    utilization: float,
    latency_seconds: float,
    spare_share: float,
) -> Fleet:
    """Return the smallest fleet that stays below a utilization while some of its machines are away.

    Args:
        machine: machine of each replica.
        traffic: requests of the whole fleet.
        utilization: maximum used share of a replica's capacity, 0 … 1.
        latency_seconds: mean latency of a request at that utilization.
        spare_share: share of machines that may be away at once: a zone, or a rolling update.

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
    """Cost of encoding a corpus."""

    machine_hours: float
    days: float
    """Days on the given number of machines."""
    dollars: float
    stored_bytes: int
    """Bytes of a float32 vector for each text."""


def corpus(
    machine: Machine,
    *,
    texts: int,
    tokens: float,
    machines: int,
    efficiency: float,
    features: int,
) -> Corpus:
    """Return the cost of encoding each text of a corpus once, from files: without HTTP's front end.

    Args:
        machine: machine of each worker.
        texts: number of texts.
        tokens: mean tokens of a text.
        machines: number of machines that work at the same time.
        efficiency: share of a machine's capacity that a job over files reaches, 0 … 1.
        features: features of a vector.

    """
    rate = efficiency * dataclasses.replace(machine.node, front_seconds=0.0).capacity(tokens)
    hours = texts / rate / 3600
    return Corpus(
        hours, hours / machines / 24, hours * machine.dollars_an_hour, 4 * features * texts
    )
