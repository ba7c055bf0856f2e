"""Rows that compare ways: medians, spread, ratios and percentiles."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict

import pytest

from benchmarks.harness.rows import FASTEST_PEER, content, percentiles, summarise, table
from tests.benchmarks.harness.ways import BASES, SAMPLES, WAYS, sample


@pytest.fixture
def rows():
    return summarise(WAYS, SAMPLES, BASES)


def test_percentiles():
    assert percentiles([]) == {}
    assert percentiles(range(101)) == {"p50": 50, "p90": 90, "p99": 99}


def test_ratios_are_medians_of_the_rounds(rows):
    ratios = {row.name: row.ratios for row in rows}
    assert ratios["Headscope, in process"] == {"st, in process": 2, FASTEST_PEER: 2}
    assert ratios["Headscope, HTTP, 16 connections"] == {"st, in process": 0.75, FASTEST_PEER: 3}
    assert ratios["Headscope, HTTP, fixed arrivals"] == {}


def test_a_row_gives_medians_and_spread(rows):
    row = rows[4]
    assert (row.least, row.texts_per_second, row.most) == (10, 15, 20)
    assert row.share == 0.015
    assert row.latency_ms["p50"] == statistics.median([1, 2, 3, 4, 5])


def test_the_table_has_a_cell_for_everything(rows):
    lines = table(rows, BASES).splitlines()
    assert {line.count(" | ") for line in lines} == {7}
    assert lines[2].startswith("| st, in process | 20 (10 to 40) | 1.00 |")
    assert (
        "| Headscope, HTTP, 16 connections | 15 (10 to 20) | 0.75 | 3.00 | 0.01 | 0.9999 |"
        in lines[6]
    )


def test_json_has_every_sample(rows):
    found = json.loads(json.dumps(content(rows, SAMPLES, {"absent": {"peer": "why"}})))
    assert found["absent"] == {"peer": "why"}
    assert [row["name"] for row in found["rows"]] == list(SAMPLES)
    assert found["samples"]["st, in process"][0] == asdict(sample(10))
