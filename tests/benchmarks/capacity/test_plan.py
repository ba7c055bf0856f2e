"""Plans of fleets and corpora, against sums by hand."""

from __future__ import annotations

import pytest

from benchmarks.capacity.__main__ import main
from benchmarks.capacity.plan import Machine, Traffic, corpus, fleet
from benchmarks.capacity.simulation import Node

MACHINE = Machine(Node(0.0, 0.001, batch_tokens=100), memory_bytes=10, dollars_an_hour=0.5)
"""1,000 tokens, and so 50 texts of 20 tokens, a second."""


def test_a_fleet_bears_the_loss_of_some() -> None:
    traffic = Traffic(rate=1000, tokens=20, request_bytes=100, reply_bytes=1000)
    found = fleet(MACHINE, traffic, utilization=0.5, latency_seconds=0.1, spare_share=0.2)
    assert (found.replicas, found.spare) == (50, 10)
    assert found.memory_bytes == 500
    assert (found.received_bits, found.sent_bits) == (800_000, 8_000_000)
    assert found.in_flight == 100
    assert found.dollars_a_month == 50 * 0.5 * 720


def test_the_smallest_fleet_has_one_to_spare() -> None:
    traffic = Traffic(rate=1, tokens=20, request_bytes=100, reply_bytes=1000)
    found = fleet(MACHINE, traffic, utilization=0.5, latency_seconds=0.1, spare_share=0.0)
    assert (found.replicas, found.spare) == (2, 1)


def test_a_corpus() -> None:
    found = corpus(MACHINE, texts=3_600_000, tokens=20, machines=5, efficiency=0.8, features=4)
    assert found.machine_hours == pytest.approx(25)
    assert found.days == pytest.approx(5 / 24)
    assert found.dollars == pytest.approx(12.5)
    assert found.stored_bytes == 16 * 3_600_000


@pytest.mark.parametrize(
    ("arguments", "row"),
    [
        (["latency", "--requests", "500", "--replicas", "2", "--loads", "0.5"], "| 2 | 0.5 |"),
        (["fleet", "--requests", "500", "--rate", "1000"], "| replicas | "),
        (["corpus", "--texts", "1000000"], "| vectors, float32 | 0.0 TiB |"),
    ],
)
def test_each_table_is_printed(
    arguments: list[str], row: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    assert row in capsys.readouterr().out
