"""The folder of a service: removed at the end, or by the next one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.process import folder
from tests.service.logged import Log

HOLDING = """
import sys
from pathlib import Path
from service.process import folder

with folder.made() as made:
    print(made, flush=True)
    sys.stdin.read()
"""
JOINING = """
import sys
from pathlib import Path
from service.process import folder

with folder.held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder of a test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextlib.contextmanager
def process(parent: Path, program: str, *arguments: str) -> Iterator[tuple[str, subprocess.Popen]]:
    """A process that has a folder, the line that it says, and its end."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "TMPDIR": str(parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout
        try:
            yield running.stdout.readline().strip(), running
        finally:
            running.kill()


def names(parent: Path) -> set[str]:
    return {one.name for one in parent.iterdir()}


def test_it_is_there_until_the_end(parent: Path) -> None:
    with folder.made() as made:
        assert names(parent) == {made.name}
        assert made.stat().st_mode & 0o777 == 0o700
        assert names(made) == {folder.LOCK}
        (made / "counter_0.db").touch()
    assert names(parent) == set()


@pytest.mark.slow
def test_it_goes_when_the_last_of_its_processes_is_gone(parent: Path, log: Log) -> None:
    with process(parent, HOLDING) as (abandoned, first):
        with process(parent, JOINING, abandoned) as (said, second):
            assert said == "held"
            first.kill()
            first.wait()
            with folder.made() as made:
                assert names(parent) == {Path(abandoned).name, made.name}
            second.kill()
            second.wait()
        Path(abandoned, "counter_0.db").touch()
        foreign = Path(abandoned, "notes.txt")
        foreign.write_text("a user's own")
        with folder.made() as made:
            assert names(parent) == {Path(abandoned).name, made.name}
        assert names(Path(abandoned)) == {folder.LOCK, "counter_0.db", "notes.txt"}
        foreign.unlink()
        with folder.made() as made:
            assert names(parent) == {made.name}
    left, removed = log.text.splitlines()
    assert left.endswith(
        f"{abandoned}, of a service that has ended, is left: no service made notes.txt in it"
    )
    assert removed.endswith(f"removed {abandoned}, of a service that has ended")


def test_foreign_folders_stay(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a lock, with a lock of another program, of another user, a link, a file."""
    for name in ("headscope-starting", "headscope-notes", "elsewhere"):
        (parent / name).mkdir()
    (parent / "headscope-notes" / folder.LOCK).write_text("another program's")
    (parent / "elsewhere" / folder.LOCK).write_bytes(folder.MARK)
    (parent / "headscope-link").symlink_to(parent / "elsewhere")
    (parent / "headscope-file").touch()
    before = names(parent)
    with folder.made():
        pass
    assert names(parent) == before
    (parent / "headscope-other").mkdir()
    (parent / "headscope-other" / folder.LOCK).write_bytes(folder.MARK)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with folder.made():
        pass
    assert names(parent) == before | {"headscope-other"}
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(parent))
    with folder.made():
        pass
    assert names(parent) == before


def test_who_comes_too_late_does_not_join(parent: Path) -> None:
    with pytest.raises(FileNotFoundError), folder.held(parent):
        pass
