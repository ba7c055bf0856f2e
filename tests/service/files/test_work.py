"""Folders of unfinished runs, with held locks."""

from __future__ import annotations

import contextlib
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

from service.files import work as module
from service.files.options import UsageError
from service.files.parts import create
from service.files.work import WorkFolder


def test_a_run_is_taken_up(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "out.npy")
    with work.held(restart=False):
        assert not work.begin({"a": 1, "b": [1, 2]})
        assert work.begin({"b": [1, 2], "a": 1})
        with pytest.raises(
            UsageError, match=r"with other a \(was 1, is 2\), c \(.*resume with the same command"
        ):
            work.begin({"a": 2, "b": [1, 2], "c": 0})
        work.draft.write_bytes(b"content")
        work.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["out.npy"]
    assert work.out.read_bytes() == b"content"


def test_a_restart_throws_away(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "out.npy")
    with work.held(restart=False):
        work.begin({"a": 1})
    with work.held(restart=True):
        assert not work.begin({"a": 2})


def test_what_did_not_begin_leaves_nothing(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "out.npy")
    with work.held(restart=False):
        work.spool.touch()
    assert list(tmp_path.iterdir()) == []


def test_a_refused_run_leaves_nothing(tmp_path: Path) -> None:
    """Also where a killed run has left its folder without a job."""
    work = WorkFolder(tmp_path / "out.npy")
    work.out.write_bytes(b"finished")
    for _ in range(2):
        with pytest.raises(UsageError, match="--restart replaces it"), work.held(restart=False):
            pytest.fail("the output is there")
        assert content(tmp_path) == {"out.npy": b"finished"}
        work.folder.mkdir()
        (work.folder / "lock").write_text(f"headscope encode {'0' * 32}\n", encoding="utf-8")


def test_the_folder_of_the_next_process_stays(tmp_path: Path) -> None:
    """A process that is done knows the folder no more, which another has made meanwhile."""
    work, other = WorkFolder(tmp_path / "out.npy"), WorkFolder(tmp_path / "out.npy")
    with contextlib.ExitStack() as next_run:
        with work.held(restart=False):
            work.begin({"a": 1})
            work.draft.write_bytes(b"content")
            work.finish()
            next_run.enter_context(other.held(restart=True))
        assert {path.name for path in tmp_path.iterdir()} == {"out.npy", "out.npy.part"}
        other.begin({"a": 2})


def finish_killed(work: WorkFolder, monkeypatch: pytest.MonkeyPatch, *, after: bool) -> None:
    """Finish, but for what comes after, or from, the moment that the output has its name."""

    def killed(source: Path, target: Path) -> None:
        if after:
            source.rename(target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, work.held(restart=False):
        patched.setattr("service.files.work.rename_new", killed)
        work.begin({"a": 1})
        work.draft.write_bytes(b"content")
        with pytest.raises(KeyboardInterrupt):
            work.finish()


def test_an_output_that_got_its_name_before_a_kill_is_the_runs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = WorkFolder(tmp_path / "out.npy")
    finish_killed(work, monkeypatch, after=True)
    with work.held(restart=False):
        assert work.begin({"a": 1})
        work.draft.write_bytes(b"content")
        work.finish()
    assert content(tmp_path) == {"out.npy": b"content"}


def test_a_kill_after_each_of_two_outputs_stops_no_later_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second output takes the name of the first, which is the run's own."""
    work = WorkFolder(tmp_path / "out.npy")

    def killed() -> None:
        raise KeyboardInterrupt

    for number in range(3):
        with monkeypatch.context() as patched, work.held(restart=False):
            assert work.begin({"a": 1}) is (number > 0)
            work.draft.write_bytes(b"content")
            if number == 2:
                work.finish()
                break
            patched.setattr(work, "_remove_files", killed)
            with pytest.raises(KeyboardInterrupt):
                work.finish()
    assert content(tmp_path) == {"out.npy": b"content"}


def test_an_output_of_somebody_else_is_not_the_runs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made after a kill, or in the moment before the output gets its name."""
    work = WorkFolder(tmp_path / "out.npy")
    finish_killed(work, monkeypatch, after=False)
    work.out.write_bytes(b"mine")
    with pytest.raises(UsageError, match="--restart replaces it"), work.held(restart=False):
        pytest.fail("the output is somebody else's")
    work.out.unlink()
    with work.held(restart=False):
        work.begin({"a": 1})
        work.draft.write_bytes(b"content")
        monkeypatch.setattr("service.files.work.sync", lambda _: work.out.write_bytes(b"mine"))
        monkeypatch.setattr(work, "_note_output", lambda: None)
        with pytest.raises(UsageError, match="--restart replaces it"):
            work.finish()
    assert work.out.read_bytes() == b"mine"


FOREIGN: dict[str, Callable[[Path], object]] = {
    "an empty folder": lambda part: part.mkdir(),
    "a folder": lambda part: (part.mkdir(), (part / "mine").write_text("mine")),
    "a folder with a lock": lambda part: (part.mkdir(), (part / "lock").write_text("mine")),
    "a folder with a job": lambda part: (part.mkdir(), (part / "job.json").write_text("{}")),
    "a file": lambda part: part.write_text("mine"),
    "a link to a folder": lambda part: part.symlink_to(part.parent / "other"),
    "a dangling link": lambda part: part.symlink_to(part.parent / "nowhere"),
}


def content(folder: Path) -> dict[str, object]:
    """Return the contents or link targets of all names below a folder; None for a folder."""
    return {
        str(path.relative_to(folder)): path.readlink()
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_of_somebody_else_stays(
    tmp_path: Path, name: str, finished: bool, restart: bool
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").write_text("mine", encoding="utf-8")
    FOREIGN[name](tmp_path / "out.npy.part")
    if finished:
        (tmp_path / "out.npy").write_text("finished", encoding="utf-8")
    before = content(tmp_path)
    work = WorkFolder(tmp_path / "out.npy")
    with pytest.raises(UsageError, match=r"out\.npy\.part"), work.held(restart=restart):
        pytest.fail("it is not the run's own")
    assert content(tmp_path) == before


INSIDE: dict[str, Callable[[Path], object]] = {
    "notes.txt": lambda path: path.write_text("mine"),
    "0.part": lambda path: path.write_text("mine"),
    "sub": lambda path: path.mkdir(),
    "000000000000.part": lambda path: path.symlink_to(path.parent.parent / "mine"),
    "output": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("name", INSIDE)
def test_a_thing_of_somebody_else_in_the_folder_is_named(
    tmp_path: Path, name: str, restart: bool
) -> None:
    work = WorkFolder(tmp_path / "out.npy")
    with work.held(restart=False):
        work.begin({"a": 1})
    INSIDE[name](work.folder / name)
    before = content(tmp_path)
    with pytest.raises(UsageError, match=f"{name} was not made"), work.held(restart=restart):
        pytest.fail("something is not the run's own")
    assert content(tmp_path) == before


def test_a_finished_output_is_replaced_by_a_restart_alone(tmp_path: Path) -> None:
    """This also holds beside an unfinished run, and for an output that appears during the run."""
    work = WorkFolder(tmp_path / "out.npy")
    with work.held(restart=False):
        work.begin({"a": 1})
        work.draft.write_bytes(b"new")
        work.out.write_bytes(b"finished")
        with pytest.raises(UsageError, match="--restart replaces it"):
            work.finish()
    with pytest.raises(UsageError, match="--restart replaces it"), work.held(restart=False):
        pytest.fail("the output is there")
    with work.held(restart=True):
        work.begin({"a": 1})
    with work.held(restart=False):  # a run that --restart began may be resumed
        assert work.begin({"a": 1})
        work.draft.write_bytes(b"new")
        work.finish()
    assert content(tmp_path) == {"out.npy": b"new"}


def test_links_are_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine", encoding="utf-8")
    os.link(tmp_path / "mine", tmp_path / "output")
    with create(tmp_path / "output") as file:
        file.write(b"new")
    (tmp_path / "output").unlink()
    (tmp_path / "output").symlink_to("mine")
    with create(tmp_path / "output") as file:
        file.write(b"new")
    assert content(tmp_path) == {"mine": b"mine", "output": b"new"}


@pytest.mark.parametrize("damage", ["[]", "{", "", "{}", '{"id": 1, "job": {}, "replaces": false}'])
def test_a_damaged_job_is_one_line(tmp_path: Path, damage: str) -> None:
    work = WorkFolder(tmp_path / "out.npy")
    with work.held(restart=False):
        work.begin({"a": 1})
    (work.folder / "job.json").write_text(damage, encoding="utf-8")
    with pytest.raises(UsageError, match=r"job\.json is damaged"), work.held(restart=False):
        pytest.fail("the job cannot be read")
    with work.held(restart=True):
        assert not work.begin({"a": 1})


ID = "0123456789abcdef" * 2
KILLED = """
import os, sys
from pathlib import Path
from service.files import work as module
from service.files.work import WorkFolder

def killed(*_):
    os._exit(9)

def tried(step):
    if "{after}":
        real = getattr(module, step)
        return lambda *arguments: (real(*arguments), os._exit(9))
    return killed

work = WorkFolder(Path("out.npy"))
if "{when}" == "claim":
    module.{step} = tried("{step}")
with work.held(restart=False):
    module.{step} = tried("{step}")
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
def claimable(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A name for a folder, also where the system cannot rename without replacing."""

    def cannot(*_: object) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1

    if request.param == "NFS":
        monkeypatch.setattr(
            module.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(renameat2=cannot)
        )
    return tmp_path / "out.part"


def test_a_folder_is_claimed_once(claimable: Path) -> None:
    lock = module.claim(claimable)
    assert lock is not None
    assert module.claim(claimable) is None
    with module.open_lock(claimable) as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    id_ = lock.seek(0) or lock.read().split()[-1].decode()
    module.release(claimable, id_)
    assert list(claimable.parent.iterdir()) == []
    lock.close()


OTHERS: dict[str, Callable[[Path], object]] = {
    "an empty folder": lambda path: path.mkdir(),
    "a file": lambda path: path.write_text("mine"),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_somebody_else_makes_meanwhile_stays(
    claimable: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before the folder gets its name, which in Python would replace an empty folder."""
    monkeypatch.setattr(module, "sync", lambda file: OTHERS[name](claimable))
    assert module.claim(claimable) is None
    assert list(claimable.parent.iterdir()) == [claimable]
    assert not claimable.is_dir() or list(claimable.iterdir()) == []


def test_a_scratch_folder_that_was_tidied_away_is_made_anew(
    claimable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = module.sync

    def tidied(file: object) -> None:
        monkeypatch.setattr(module, "sync", sync)
        module.tidy(claimable)

    monkeypatch.setattr(module, "sync", tidied)
    lock = module.claim(claimable)
    assert lock is not None
    lock.close()
    assert list(claimable.parent.iterdir()) == [claimable]
    assert module.claim(claimable) is None


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
    module.tidy(tmp_path / "out.part")
    gone = before - {path.name for path in tmp_path.rglob("*")}
    assert gone == ({name, *content} if tidied else set())


def test_a_scratch_folder_in_use_stays(claimable: Path) -> None:
    scratch = claimable.with_name(f"out.part.{ID}")
    scratch.mkdir()
    (scratch / "lock").write_text(f"headscope encode {ID}\n", encoding="utf-8")
    with module.open_lock(scratch) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        module.tidy(claimable)
        assert scratch.exists()
    module.tidy(claimable)
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
        module.open_lock(tmp_path)
