"""Judges of replies and runs fail the wrong ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.client import Reply
from testing.load import Result
from trials import (
    batching,
    faults,
    gates,
    mixups,
    overload,
    saturation,
    schema,
    soak,
    stalls,
    texts,
)
from trials.gates import Gate, Scale

BOUNDS = [
    (gates.at_least("g", 3, 3), True),
    (gates.at_least("g", 3, 2.9), False),
    (gates.at_most("g", 3, 3), True),
    (gates.at_most("g", 3, float("inf")), False),
    (gates.exactly("g", {"right"}, {"right"}), True),
    (gates.exactly("g", {"right"}, {"right", "wrong"}), False),
]


@pytest.mark.parametrize(("gate", "passed"), BOUNDS)
def test_bounds(gate: Gate, passed: bool) -> None:
    assert gate.passed is passed


def test_not_a_number_is_no_pass() -> None:
    assert not gates.at_most("g", 3, float("nan")).passed
    assert not gates.at_least("g", 3, float("nan")).passed


@pytest.mark.parametrize(("found", "code"), [(1, 0), (0, 1)])
def test_a_gate_that_fails_is_an_exit_code(found: int, code: int, tmp_path: Path) -> None:
    written = tmp_path / "gates.json"
    script = f"from trials.gates import *; main('', g=lambda scale: [at_least('g', 1, {found})])"
    command = [sys.executable, "-c", script, "--short", "--json", str(written)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert f"| g | ≥ 1 | {found} | {'yes' if found else 'NO'} |" in done.stdout
    content = json.loads(written.read_text())
    assert content["scale"] == "short"
    assert content["gates"] == [
        {"name": "g", "must": "≥ 1", "found": str(found), "passed": bool(found)}
    ]


def test_the_scale() -> None:
    assert (Scale.FULL.of(10, 1), Scale.SHORT.of(10, 1)) == (10, 1)
    assert Scale.FULL.slack == 1


def test_at_the_short_scale_things_only_have_to_end() -> None:
    assert gates.at_most("g", 3 * Scale.SHORT.slack, 1e9).passed
    assert not gates.at_most("g", 3 * Scale.SHORT.slack, float("inf")).passed
    assert all(gate.passed for gate in overload.judge(3.0, 1e9, seconds_of(FINE), float("inf")))
    nobody = seconds_of(Counter(shed=600))
    assert not all(gate.passed for gate in overload.judge(3.0, 200, nobody, float("inf")))


def test_that_nothing_is_shed_is_only_allowed_at_the_short_scale() -> None:
    all_right = seconds_of(Counter(right=600))
    for slack, failed in ((1, ["3×C: p99 of shed"]), (float("inf"), [])):
        found = saturation.judge(3.0, 200, all_right, slack)
        assert [gate.name for gate in found if not gate.passed] == failed
    slow = saturation.judge(3.0, 200, seconds_of(FINE, ms=110), 1)
    assert [gate.name for gate in slow if not gate.passed] == ["3×C: p99 of shed"]


def seconds_of(outcomes: Counter[str], shed: str | None = "1", ms: float = 10) -> Result:
    """Return the result of a second of load at a capacity of 200 requests a second."""
    count = outcomes.total()
    return Result(
        outcomes=list(outcomes.elements()),
        due_seconds=[0.0] * count,
        latencies_ms=[ms] * count,
        retries_after=[shed] * count,
        ended=1.0,
        cpu_seconds=0.1,
    )


FINE = Counter(right=190, shed=410)


def slow_to_refuse() -> Result:
    """Make refused requests wait longer than accepted ones."""
    result = seconds_of(FINE)
    result.latencies_ms = [10.0 if one == "right" else 11.0 for one in result.outcomes]
    return result


LOADS: list[tuple[str, Result]] = [
    ("goodput", seconds_of(Counter(right=170, shed=430))),
    ("p99 of accepted", seconds_of(FINE, ms=700)),
    ("p99 of shed", seconds_of(FINE, ms=60)),
    ("median of shed", slow_to_refuse()),
    ("neither right nor 429", seconds_of(FINE + Counter({"503": 1}))),
    ("neither right nor 429", seconds_of(FINE + Counter({"lost": 1}))),
    ("neither right nor 429", seconds_of(FINE + Counter({"wrong": 1}))),
    ("Retry-After", seconds_of(FINE, shed=None)),
    ("Retry-After", seconds_of(FINE, shed="0")),
    ("Retry-After", seconds_of(FINE, shed="0.5")),
]


def test_a_load_that_is_fine() -> None:
    assert all(gate.passed for gate in overload.judge(3.0, 200, seconds_of(FINE), 1))


@pytest.mark.parametrize(("name", "result"), LOADS)
def test_a_load_that_is_not(name: str, result: Result) -> None:
    failed = [g.name for g in overload.judge(3.0, 200, result, 1) if not g.passed]
    assert any(name in one for one in failed)


def test_recovery_is_found_where_it_is() -> None:
    baseline = Result(["right"] * 100, [i / 10 for i in range(100)], [10.0] * 100, [None] * 100)
    late = [100.0 if i < 20 else 11.0 for i in range(100)]
    after = Result(["right"] * 100, baseline.due_seconds, late, [None] * 100)
    assert overload.recovered_after(baseline, baseline) == 0
    assert overload.recovered_after(baseline, after) == 2
    never = Result(["right"] * 100, baseline.due_seconds, [13.0] * 100, [None] * 100)
    assert overload.recovered_after(baseline, never) == float("inf")


def ok(content: object) -> Reply:
    return Reply(200, b"HTTP/1.1 200 ok\r\n\r\n", json.dumps(content).encode())


def test_a_fault_is_told_from_a_right_answer() -> None:
    asked = ["the water", "a long day"]
    results = [{"pooled": faults.expected(text)} for text in asked]
    assert faults.outcome(asked, ok({"results": results})) == "right"
    assert faults.outcome(asked, ok({"results": results[::-1]})) == "wrong"
    assert faults.outcome(asked, ok({"results": results[:1]})) == "wrong"
    results[1]["pooled"][3] += 1e-6
    assert faults.outcome(asked, ok({"results": results})) == "wrong"
    assert faults.outcome(asked, Reply(500, b"", b"")) == "500"


def asked_and_answered() -> tuple[mixups.Asked, dict[str, Any]]:
    asked = mixups.Asked(["the water", "a long day"], 3, "max", True, 4, True)
    results = [
        {
            "token_ids": mixups.oracle.tokens_of(text).input_ids.tolist(),
            "embeddings": mixups.oracle.hidden(text, 3).tolist(),
            "pooled": mixups.oracle.pooled(text, 3, "max", 4, normalize=True).tolist(),
        }
        for text in asked.texts
    ]
    return asked, {"results": results}


def test_a_reply_that_is_the_requests_own() -> None:
    asked, content = asked_and_answered()
    assert mixups.is_right(asked, json.dumps(content).encode())


@pytest.mark.parametrize("name", ["token_ids", "embeddings", "pooled"])
def test_a_reply_that_is_anothers(name: str) -> None:
    asked, content = asked_and_answered()
    first, second = content["results"]
    first[name], second[name] = second[name], first[name]
    assert not mixups.is_right(asked, json.dumps(content).encode())


def test_company_that_changes_a_text() -> None:
    rng = np.random.default_rng(0)
    maps = np.full((2, 1, 3, 3), 1 / 3, np.float32)
    alone = batching.Seen(np.arange(3), rng.random((3, 4)), rng.random(4), maps)
    found = batching.Found()
    found.compare(alone, alone)
    found.compare_maps(alone, maps)
    assert found.max_abs_diff == 0
    assert found.row_sum_diff < 1e-6
    found.compare(alone, batching.Seen(np.arange(3), alone.embeddings, alone.pooled + 2e-5))
    assert found.max_abs_diff == pytest.approx(2e-5)
    found.compare(alone, batching.Seen(np.arange(1, 4), alone.embeddings, alone.pooled))
    assert found.out_of_order == 1
    found.compare_maps(alone, maps * 1.001)
    assert found.row_sum_diff == pytest.approx(1e-3, rel=1e-2)
    found.compare(alone, batching.Seen(np.arange(3), alone.embeddings * np.nan, alone.pooled))
    assert found.max_abs_diff == float("inf")


def test_a_text_that_was_seen_otherwise() -> None:
    class Tokenizer(texts.Reference):
        def __init__(self) -> None:
            pass

        def expected(self, text: str, most: int) -> dict[str, Any]:
            return {"tokens": [text], "token_ids": [1], "offsets": [[0, most]]}

    right = {"tokens": ["a"], "token_ids": [1], "offsets": [[0, 9]], "pooled": [0.6, 0.8]}

    def wrong(*results: dict[str, Any]) -> list[str]:
        return texts.compare(["a"], {"results": results}, Tokenizer(), 9)

    assert wrong(right) == []
    assert wrong(right | {"offsets": [[0, 8]]}) == ["offsets of 'a'"]
    assert wrong(right | {"token_ids": [2]}) == ["token_ids of 'a'"]
    assert wrong(right | {"pooled": [None, 0.8]}) == ["pooled of 'a'"]
    assert wrong(right | {"pooled": [0.6, 0.9]}) == ["pooled of 'a'"]
    assert wrong(right, right) == ["2 results of 1 texts"]
    assert [g.passed for g in texts.judge(texts.Compared(9, ["x"]), 9)] == [True, False, False]


def test_a_check_that_failed() -> None:
    fine, short = schema.Fuzzed("POST /a", 10), schema.Fuzzed("POST /a", 9)
    bad = schema.Fuzzed("GET /b", 1, ["it is not what the document says"])
    assert all(gate.passed for gate in schema.judge([fine], {"POST /a"}, 10))
    assert not all(gate.passed for gate in schema.judge([short], {"POST /a"}, 10))
    assert not all(gate.passed for gate in schema.judge([fine, bad], {"POST /a"}, 10))


def test_a_status_that_should_not_have_been() -> None:
    assert soak.judged(Reply(422, b"", b""), 422) == "right"
    assert soak.judged(Reply(500, b"", b""), 200) == "500 for 200"


def test_how_much_later_others_are_answered() -> None:
    def asked(ms: float) -> Result:
        return seconds_of(Counter(right=100), ms=ms)

    late = asked(10)
    late.latencies_ms[-2:] = [100.0, 100.0]
    assert stalls.ratio([asked(20), asked(22), asked(90)], [asked(20)] * 3, 50) == 1.1
    assert stalls.ratio([late], [asked(10)], 50) == 1
    assert stalls.ratio([late], [asked(10)], 99) > 9
