"""An interrupted run, or a failed step, keeps the figures so far."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.harness.figures import Figure
from benchmarks.harness.report import Report


def test_a_step_that_fails_keeps_what_it_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "out.json"
    report = Report(path, {"device": "cpu"})
    meanwhile = []

    def figures():
        yield Figure("first", 1.0, "s", details={"worst": float("inf"), "list": (1, 2)})
        meanwhile.append(json.loads(path.read_text(encoding="utf-8")))
        raise ValueError("no luck\nat all")

    assert not report.run("unlucky", figures())
    assert report.run("lucky", iter([Figure("second", 2.0)]))
    assert meanwhile[0]["steps"]["unlucky"]["figures"][0]["details"] == {
        "worst": "inf",
        "list": [1, 2],
    }
    assert meanwhile[0]["steps"]["unlucky"]["complete"] is False
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["device"] == "cpu"
    assert found["steps"]["unlucky"]["error"] == "ValueError: no luck at all"
    assert found["steps"]["lucky"]["complete"] is True
    assert report.failed
    lines = report.table().splitlines()
    assert {line.count(" | ") for line in lines} == {3}
    assert lines[2:] == [
        "| first | 1 s |  |  |",
        "| unlucky | FAILED |  | ValueError: no luck at all |",
        "| second | 2 |  |  |",
    ]
    assert "no luck" in capsys.readouterr().err
