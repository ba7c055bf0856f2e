"""Groups of test files that one process runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.order import DASHBOARD, LONGEST, OF_THE_DEFAULT_SERVICE, Scheduling

ROOT = Path(__file__).resolve().parents[1]


def scope(path: str) -> str:
    return Scheduling._split_scope(cast("Any", SimpleNamespace()), f"{path}::test_one[a-b]")


def test_files_that_share_a_service_are_one_group() -> None:
    assert len({scope(path) for path in OF_THE_DEFAULT_SERVICE}) == 1
    assert all((ROOT / path).is_file() for path in OF_THE_DEFAULT_SERVICE)


def test_the_dashboard_is_two_groups() -> None:
    files = [f"{DASHBOARD}{path.name}" for path in (ROOT / DASHBOARD).glob("test_*.py")]
    groups = [scope(path) for path in files]
    assert len(set(groups)) == 2
    assert all(len(files) / 4 < groups.count(group) for group in groups)


def test_any_other_file_is_a_group() -> None:
    for path in ("tests/test_docs.py", "tests/journeys/test_workers.py"):
        assert scope(path) == path


def test_what_runs_first_exists() -> None:
    assert all((ROOT / "tests" / path).exists() for path in LONGEST)
