"""Operators count from the second run on."""

from __future__ import annotations

from benchmarks import profiling


def test_operators_of_the_first_run_do_not_count():
    def node(name: str, at: int, spent: int) -> dict:
        arguments = {"op_name": name}
        return {"cat": "Node", "name": "n_kernel_time", "ts": at, "dur": spent, "args": arguments}

    run = {"cat": "Session", "name": "model_run"}
    events = [run | {"ts": 10}, node("MatMul", 11, 500), run | {"ts": 20}, node("MatMul", 21, 5)]
    events += [node("Add", 22, 2), node("MatMul", 23, 1), {"cat": "Session", "name": "load"}]
    assert profiling.spent(events) == {"MatMul": 6, "Add": 2}
    assert profiling.spent(events[:2]) == {}
