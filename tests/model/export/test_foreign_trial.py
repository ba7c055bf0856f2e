"""Verification of a foreign graph against itself detects leaks from one text into another."""

from __future__ import annotations

from pathlib import Path

from tests.foreign import exported_from, write_foreign


def test_a_graph_that_looks_at_padding_fails(tmp_path: Path) -> None:
    record = exported_from(write_foreign(tmp_path / "leaks", leaks=True)).manifest.verification
    assert not record.passed
    assert record.min_cosine["hidden"] < 0.999
    assert record.max_abs_diff_below["hidden"] is not None
    assert record.max_abs_diff_below["hidden"] >= 0.1


def test_a_graph_that_does_not_passes(tmp_path: Path) -> None:
    record = exported_from(write_foreign(tmp_path / "holds")).manifest.verification
    assert record.passed
    assert record.reference == "itself"
    assert record.tolerances.keys() == {"hidden"}
    assert (record.provider, record.inputs) == ("CPUExecutionProvider", 4)
    assert record.min_cosine["hidden"] == 1.0
