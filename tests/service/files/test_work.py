"""Folders of unfinished runs, with held locks."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.files.options import UsageError
from service.files.parts import create
from service.files.work import WorkFolder, link_new


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
        (work.folder / "lock").write_text("headscope encode\n", encoding="utf-8")


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
            os.link(source, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, work.held(restart=False):
        patched.setattr("service.files.work.link_new", killed)
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


def test_a_killed_restart_leaves_no_vectors_to_the_next_run(tmp_path: Path) -> None:
    """They are of other inputs or options, and the next run has a job of its own."""
    work = WorkFolder(tmp_path / "out.npy")
    work.folder.mkdir()
    for name, left in {"lock": "headscope encode\n", "000000000000.part": "vectors"}.items():
        (work.folder / name).write_text(left, encoding="utf-8")
    with work.held(restart=False):
        assert not work.begin({"a": 2})
        assert {path.name for path in work.folder.iterdir()} == {"job.json", "lock"}


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
        with pytest.raises(UsageError, match="--restart replaces it"):
            work.finish()
    assert work.out.read_bytes() == b"mine"


FOREIGN: dict[str, Callable[[Path], object]] = {
    "a folder": lambda part: (part.mkdir(), (part / "mine").write_text("mine")),
    "a folder with a lock": lambda part: (part.mkdir(), (part / "lock").write_text("mine")),
    "a folder with an empty lock": lambda part: (
        *(part.mkdir(), (part / "lock").touch(), (part / "output").write_text("mine")),
    ),
    "a folder with a folder as lock": lambda part: (part / "lock").mkdir(parents=True),
    "a folder with a pipe as lock": lambda part: (part.mkdir(), os.mkfifo(part / "lock")),
    "a folder with a link as lock": lambda part: (
        *(part.mkdir(), (part / "lock").symlink_to(part.parent / "other" / "mine")),
    ),
    "a folder with a job": lambda part: (part.mkdir(), (part / "job.json").write_text("{}")),
    "a file": lambda part: part.write_text("mine"),
    "a link to a folder": lambda part: part.symlink_to(part.parent / "other"),
    "a dangling link": lambda part: part.symlink_to(part.parent / "nowhere"),
}


def content(folder: Path) -> dict[str, object]:
    """Return the contents or link targets of names below a folder, or whether they are pipes."""
    return {
        str(path.relative_to(folder)): path.readlink()
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else path.is_fifo()
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


@pytest.mark.parametrize("damage", ["[]", "{", "", "{}", '{"job": {}, "replaces": 1}'])
def test_a_damaged_job_is_one_line(tmp_path: Path, damage: str) -> None:
    work = WorkFolder(tmp_path / "out.npy")
    with work.held(restart=False):
        work.begin({"a": 1})
    (work.folder / "job.json").write_text(damage, encoding="utf-8")
    with pytest.raises(UsageError, match=r"job\.json is damaged"), work.held(restart=False):
        pytest.fail("the job cannot be read")
    with work.held(restart=True):
        assert not work.begin({"a": 1})


KILLED = """
import os
from pathlib import Path
from service.files import work as module

def killed(owner, step):
    real = getattr(owner, step)
    setattr(owner, step, lambda *arguments, **options: (
        {after} and real(*arguments, **options), os._exit(9)
    ))

work = module.WorkFolder(Path("out.npy"))
if {claims}:
    killed({owner}, "{step}")
with work.held(restart=False):
    killed({owner}, "{step}")
"""


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("claims", "owner", "step"),
    [
        (True, "Path", "mkdir"),
        (True, "os", "open"),
        (True, "module", "sync"),
        (False, "Path", "unlink"),
        (False, "Path", "rmdir"),
    ],
)
def test_a_kill_at_any_step_stops_no_later_run(
    tmp_path: Path, claims: bool, owner: str, step: str, after: bool
) -> None:
    script = KILLED.format(claims=claims, owner=owner, step=step, after=after)
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    killed = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, check=False
    )
    assert killed.returncode == 9
    work = WorkFolder(tmp_path / "out.npy")
    with work.held(restart=False):
        assert content(work.folder) == {"lock": b"headscope encode\n"}
    assert list(tmp_path.iterdir()) == []


def test_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the other one ends while this one opens the lock or the folder."""
    work, other = WorkFolder(tmp_path / "out.npy"), WorkFolder(tmp_path / "out.npy")
    with (
        work.held(restart=False),
        pytest.raises(UsageError, match="another process is writing"),
        other.held(restart=True),
    ):
        pytest.fail("it is locked")
    real = os.open

    def end() -> None:
        (work.folder / "lock").unlink(missing_ok=True)
        work.folder.rmdir()

    def ended_before(*arguments: Any) -> int:
        end()
        return real(*arguments)

    def ended_after(*arguments: Any) -> int:
        opened = real(*arguments)
        end()
        return opened

    for ended in (ended_before, ended_after):
        with monkeypatch.context() as patched:
            patched.setattr("service.files.work.os.open", ended)
            with pytest.raises(UsageError, match="just written"), work.held(restart=False):
                pytest.fail("the folder is gone")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("links", [True, False])
def test_a_file_gets_a_free_name_only(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a file system without hard links."""

    def cannot(*_: object) -> None:
        raise PermissionError

    if not links:
        monkeypatch.setattr(os, "link", cannot)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("new")
    target.symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        link_new(source, target)
    target.unlink()
    link_new(source, target)
    assert target.read_bytes() == b"new"
