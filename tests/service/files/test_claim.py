"""Folders with a held lock: a kill leaves nothing that the next run does not know."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.files import claim
from service.files.work import WorkFolder

ID = "0123456789abcdef" * 2
KILLED = """
import os, sys
from pathlib import Path
from service.files import claim
from service.files.work import WorkFolder

def killed(*_):
    os._exit(9)

def tried(step):
    if "{after}":
        real = getattr(claim, step)
        return lambda *arguments: (real(*arguments), os._exit(9))
    return killed

work = WorkFolder(Path("out.npy"))
if "{when}" == "claim":
    claim.{step} = tried("{step}")
with work.held(restart=False):
    claim.{step} = tried("{step}")
"""


@pytest.mark.parametrize("after", ["", "after"])
@pytest.mark.parametrize(
    ("when", "step"),
    [
        ("claim", "create"),
        ("claim", "sync"),
        ("claim", "rename_new"),
        ("release", "rename_new"),
        ("release", "_remove"),
    ],
)
def test_a_kill_at_any_step_stops_no_later_run(
    tmp_path: Path, when: str, step: str, after: str
) -> None:
    script = KILLED.format(when=when, step=step, after=after)
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    killed = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, check=False
    )
    assert killed.returncode == 9
    work = WorkFolder(tmp_path / "out.npy")
    with work.held(restart=False):
        assert [path.name for path in tmp_path.iterdir()] == ["out.npy.part"]
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(params=["renameat2", "NFS"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A name for a folder, also where the system cannot rename without replacing."""

    def cannot(*_: object) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1

    if request.param == "NFS":
        monkeypatch.setattr(
            claim.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(renameat2=cannot)
        )
    return tmp_path / "out.part"


def test_a_folder_is_claimed_once(folder: Path) -> None:
    lock = claim.claim(folder)
    assert lock is not None
    assert claim.claim(folder) is None
    with claim.open_lock(folder) as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    id_ = lock.seek(0) or lock.read().split()[-1].decode()
    claim.release(folder, id_)
    assert list(folder.parent.iterdir()) == []
    lock.close()


OTHERS: dict[str, Callable[[Path], object]] = {
    "an empty folder": lambda path: path.mkdir(),
    "a file": lambda path: path.write_text("mine"),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_somebody_else_makes_meanwhile_stays(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before the folder gets its name, which in Python would replace an empty folder."""
    monkeypatch.setattr(claim, "sync", lambda file: OTHERS[name](folder))
    assert claim.claim(folder) is None
    assert list(folder.parent.iterdir()) == [folder]
    assert not folder.is_dir() or list(folder.iterdir()) == []


def test_a_scratch_folder_that_was_tidied_away_is_made_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = claim.sync

    def tidied(file: object) -> None:
        monkeypatch.setattr(claim, "sync", sync)
        claim.tidy(folder)

    monkeypatch.setattr(claim, "sync", tidied)
    lock = claim.claim(folder)
    assert lock is not None
    lock.close()
    assert list(folder.parent.iterdir()) == [folder]
    assert claim.claim(folder) is None


SCRATCH: list[tuple[str, dict[str, str] | str, bool]] = [
    (f"out.part.{ID}", {}, True),
    (f"out.part.{ID}", {"lock": ""}, True),
    (f"out.part.{ID}", {"lock": f"headscope encode {ID}\n"}, True),
    (f"out.part.{ID}", {"lock": f"headscope encode {ID[::-1]}\n"}, False),
    (f"out.part.{ID}", {"lock": "mine"}, False),
    (f"out.part.{ID}", {"lock": "", "mine": ""}, False),
    (f"out.part.{ID}", {"mine": ""}, False),
    (f"out.part.{ID}", "a file", False),
    (f"out.part.{ID}.mine", {}, False),
    ("out.part.mine", {}, False),
    (f"other.part.{ID}", {}, False),
]


@pytest.mark.parametrize(("name", "content", "tidied"), SCRATCH)
def test_only_scratch_folders_are_tidied_away(
    tmp_path: Path, name: str, content: dict[str, str] | str, tidied: bool
) -> None:
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    else:
        path.mkdir()
        for inside, text in content.items():
            (path / inside).write_text(text, encoding="utf-8")
        (tmp_path / f"out.part.{ID[::-1]}").symlink_to(path)
    before = {path.name for path in tmp_path.rglob("*")}
    claim.tidy(tmp_path / "out.part")
    gone = before - {path.name for path in tmp_path.rglob("*")}
    assert gone == ({name, *content} if tidied else set())


def test_a_scratch_folder_in_use_stays(folder: Path) -> None:
    scratch = folder.with_name(f"out.part.{ID}")
    scratch.mkdir()
    (scratch / "lock").write_text(f"headscope encode {ID}\n", encoding="utf-8")
    with claim.open_lock(scratch) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        claim.tidy(folder)
        assert scratch.exists()
    claim.tidy(folder)
    assert not scratch.exists()


@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a link"])
def test_a_lock_is_a_file(tmp_path: Path, kind: str) -> None:
    lock = tmp_path / "lock"
    if kind == "a folder":
        lock.mkdir()
    elif kind == "a pipe":
        os.mkfifo(lock)
    else:
        (tmp_path / "mine").touch()
        lock.symlink_to("mine")
    with pytest.raises(OSError, match="lock"):
        claim.open_lock(tmp_path)
