"""Hugging Face's cache, compared with `huggingface_hub` itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from huggingface_hub import try_to_load_from_cache

from model.sources.hub.repository import Repository, cached_name, find_cached
from tests.hub import COMMIT, NAME

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
    assert cached_name(found.folder) == NAME
    assert cached_name(cache) is None
    assert cached_name(Path("/")) is None
