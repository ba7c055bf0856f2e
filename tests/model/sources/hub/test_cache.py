"""Hugging Face's cache against `huggingface_hub`, names of repositories, and progress lines."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
from pathlib import Path

import pytest
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import http_backoff, validate_repo_id

from model.errors import SourceError
from model.sources.hub.download import report_download, report_retries
from model.sources.hub.repository import Repository, cached_name, find_cached, is_name
from model.sources.locate import display_name
from tests.hub import COMMIT, NAME, STATUSES, StandIn

HERE = Repository(NAME)


@pytest.fixture
def cache(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """Write a cache as other tools do: every file is a link to a blob."""
    home = tmp_path / "cache" / HERE.folder
    (home / "blobs").mkdir(parents=True)
    (home / "refs" / "refs" / "pr").mkdir(parents=True)
    (home / "snapshots" / COMMIT).mkdir(parents=True)
    for i, path in enumerate(sorted(tiny_checkpoint.iterdir())):
        if path.is_file():
            shutil.copy(path, home / "blobs" / str(i))
            (home / "snapshots" / COMMIT / path.name).symlink_to(f"../../blobs/{i}")
    for ref in ("main", "v1", "refs/pr/3"):
        (home / "refs" / ref).write_text(COMMIT)
    return tmp_path / "cache"


@pytest.mark.parametrize("revision", [None, "main", "v1", "refs/pr/3", COMMIT])
def test_a_snapshot_is_found_where_huggingface_hub_finds_it(
    cache: Path, revision: str | None
) -> None:
    found = find_cached(cache, Repository(NAME, revision))
    assert found is not None
    theirs = try_to_load_from_cache(NAME, "config.json", cache_dir=cache, revision=revision)
    assert str(found.folder / "config.json") == theirs
    assert found.lacks == []


@pytest.mark.parametrize("revision", ["other", "0" * 40, "v1/x"])
def test_what_is_not_cached(cache: Path, revision: str) -> None:
    assert find_cached(cache, Repository(NAME, revision)) is None
    assert find_cached(cache, Repository("someone/else")) is None
    assert find_cached(cache / "nowhere", HERE) is None


def test_a_link_to_no_blob_is_a_file_that_lacks(cache: Path) -> None:
    (cache / HERE.folder / "snapshots" / COMMIT / "model.safetensors").resolve().unlink()
    found = find_cached(cache, HERE)
    assert found is not None
    assert found.lacks == ["model.safetensors"]


@pytest.mark.parametrize("name", ["modules.json", "model.safetensors"])
def test_whether_a_file_is_known(cache: Path, name: str) -> None:
    home = cache / HERE.folder
    absent, present = home / ".no_exist" / COMMIT, home / "snapshots" / COMMIT
    absent.mkdir(parents=True)
    (present / "modules.json").write_text("[]")
    (present / "pytorch_model.bin").touch()

    def unknown() -> list[str]:
        found = find_cached(cache, HERE)
        assert found is not None
        assert found.lacks == []
        return found.unknown

    assert unknown() == []
    (present / name).unlink()
    assert unknown() == [name]
    (absent / name).touch()
    assert unknown() == []


def test_a_damaged_reference(cache: Path) -> None:
    (cache / HERE.folder / "refs" / "main").write_bytes(b"../../\xff")
    assert find_cached(cache, HERE) is None


def test_a_snapshot_has_its_repositorys_name(cache: Path) -> None:
    found = find_cached(cache, HERE)
    assert found is not None
    assert cached_name(found.folder) == display_name(str(found.folder)) == NAME
    assert cached_name(cache) is None
    assert cached_name(Path("/")) is None


LIBRARY = logging.getLogger("huggingface_hub")


def test_attempts_are_told_as_huggingface_hub_logs_them(
    hub: StandIn, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    before = [*LIBRARY.handlers], LIBRARY.propagate
    hub.failure = "unavailable"
    with report_retries(said.append):
        LIBRARY.getChild("utils._http").warning("You are sending unauthenticated requests.")
        with pytest.raises(Exception, match="503"):
            http_backoff("GET", hub.endpoint, max_retries=1)
    assert said == ["the hub fails; trying again in 1 s"]
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    assert (LIBRARY.handlers, LIBRARY.propagate) == before


def test_how_long_the_hub_lets_wait(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setitem(STATUSES, "too many", (429, {"Retry-After": "7"}))
    hub.failure = "too many"
    with report_retries(said.append), pytest.raises(Exception, match="429"):
        http_backoff("GET", hub.endpoint, max_retries=1)
    assert said == ["the hub asks to wait 8.0 s"]


@pytest.mark.parametrize("size", [4_000_000, None])
def test_lines_where_there_is_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    monkeypatch.setattr("model.sources.hub.download._EVERY_SECONDS", 0.001)
    (tmp_path / "a.incomplete").write_bytes(bytes(1_250_000))
    (tmp_path / "b.incomplete").write_bytes(b"")
    (tmp_path / "whole").write_bytes(bytes(3_000_000))
    said: list[str] = []
    twice = threading.Semaphore(0)

    def progress(line: str) -> None:
        said.append(line)
        twice.release()

    with report_download(tmp_path, "model.safetensors", size, progress):
        assert twice.acquire(timeout=60)
        assert twice.acquire(timeout=60)
    reported = len(said)
    whole = "" if size is None else " of 4.0 MB"
    assert said[0] == "fetching model.safetensors" + ("" if size is None else ", 4.0 MB")
    assert said[1] == f"model.safetensors: 1.2 MB{whole}"
    assert len(said) == reported


def test_a_terminal_has_the_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.sources.hub.download._EVERY_SECONDS", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said: list[str] = []
    with report_download(tmp_path, "model.safetensors", 10**6, said.append):
        threading.Event().wait(0.05)
    assert said == ["fetching model.safetensors, 1.0 MB"]


TEXTS = (
    *("a", "a/b", "a/b/c", "a-b/c.d_e", "/a", "a/", "-a", "a-", ".a", "a.", "a--b", "a..b"),
    *("a.git", "a/b.git", "A1/_x", "x/_", "_/x", "gpt2", "a:b", "a\\b", "é", "", " ", "a b"),
    *("intfloat/multilingual-e5-small", "x" * 96, "x" * 97, "a/" + "x" * 96, "a@b"),
)


@pytest.mark.parametrize("text", TEXTS)
def test_a_name_is_what_huggingface_hub_takes(text: str) -> None:
    try:
        validate_repo_id(text)
        taken = bool(text)
    except HFValidationError:
        taken = False
    assert is_name(text) == (taken and text.isascii())


def test_a_revision_beside_the_name_or_in_it() -> None:
    assert Repository.parse("a/b") == Repository("a/b", None)
    assert Repository.parse("a/b@v1.0") == Repository("a/b", "v1.0")
    assert Repository.parse("a/b", "refs/pr/3") == Repository("a/b", "refs/pr/3")
    assert Repository.parse("a/b@main", "main") == Repository("a/b", "main")
    assert [str(Repository.parse(text)) for text in ("a/b", "a/b@c")] == ["a/b", "a/b@c"]


@pytest.mark.parametrize("revision", ["", "../x", "a/../b", "/etc", "a b", "-x", "a\n"])
def test_what_is_no_revision(revision: str) -> None:
    for given in ((f"a/b@{revision}", None), ("a/b", revision)):
        with pytest.raises(
            SourceError, match="not a revision of a/b: give a branch, tag or commit"
        ):
            Repository.parse(*given)


def test_two_revisions() -> None:
    with pytest.raises(SourceError, match="a/b@v1 names a revision, and --revision v2 another"):
        Repository.parse("a/b@v1", "v2")
