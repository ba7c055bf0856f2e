"""Groups of test files that one process runs."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.order import DASHBOARD, GROUPS, LONGEST, OF_THE_PYTORCH_PROCESS, Scheduling

ROOT = Path(__file__).resolve().parents[1]


def scope(path: str) -> str:
    return Scheduling._split_scope(cast("Any", SimpleNamespace()), f"{path}::test_one[a-b]")


def test_files_that_share_a_process_are_one_group() -> None:
    for name, files in GROUPS.items():
        assert {scope(path) for path in files} == {name}
        assert all((ROOT / path).is_file() for path in files)


def test_all_that_share_the_pytorch_process_are_listed() -> None:
    asks = re.compile(r'"started_torch"|"torch_engine"|torch_engine: TorchEngine')
    files = sorted((ROOT / "tests" / "service").rglob("test_*.py"))
    found = [path.relative_to(ROOT).as_posix() for path in files if asks.search(path.read_text())]
    assert found == sorted(OF_THE_PYTORCH_PROCESS)


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
