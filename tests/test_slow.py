"""The list of slow tests names existing tests, and the documented command makes it."""

from __future__ import annotations

from pathlib import Path

from tests.slow import LIST, listed, slow_tests

ROOT = Path(__file__).resolve().parents[1]


def test_every_listed_test_is_there() -> None:
    assert listed()
    for test in listed():
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), test


def test_the_list_is_in_order() -> None:
    lines = LIST.read_text(encoding="utf-8").splitlines()
    assert lines == sorted(set(lines))


def test_what_takes_long_on_average_is_slow(tmp_path: Path) -> None:
    cases = [("one[a]", 0.15), ("one[b]", 0.03), ("two[a]", 0.2), *[("two[b]", 0.01)] * 4]
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite>"
        + "".join(
            f'<testcase classname="tests.model.test_a" name="test_{name}" time="{seconds}" />'
            for name, seconds in cases
        )
        + "</testsuite></testsuites>"
    )
    assert slow_tests(report) == ["tests/model/test_a.py::test_one"]
