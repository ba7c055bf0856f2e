"""Names and versions that a folder of models has."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.artifacts.repository import Repository, Source, Target
from service.errors import UnknownModel


def made(root: Path, *files: str) -> Repository:
    """Return a repository with some empty files."""
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return Repository(root)


def test_names_versions_and_kinds(tmp_path: Path) -> None:
    repository = made(
        tmp_path,
        "plain/manifest.json",
        "many/2/manifest.json",
        "many/10/config.json",
        "org/name/manifest.json",
        "org/other/3/config.json",
    )
    assert [(one.name, one.version, one.kind) for one in repository.sources()] == [
        ("many", "2", "artifact"),
        ("many", "10", "checkpoint"),
        ("org/name", "1", "artifact"),
        ("org/other", "3", "checkpoint"),
        ("plain", "1", "artifact"),
    ]


@pytest.mark.parametrize(
    "name",
    [
        ".hidden/manifest.json",
        "a/b/c/manifest.json",
        "bell\a/manifest.json",
        "manifest.json",
        "empty/readme.txt",
    ],
)
def test_what_is_no_model_of_it(tmp_path: Path, name: str) -> None:
    assert made(tmp_path, name).sources() == []


def test_a_link_inside_is_followed_and_one_that_leads_out_is_not(tmp_path: Path) -> None:
    repository = made(tmp_path / "root", "real/manifest.json")
    made(tmp_path / "outside", "model/manifest.json")
    (tmp_path / "root" / "inside").symlink_to(tmp_path / "root" / "real")
    (tmp_path / "root" / "out").symlink_to(tmp_path / "outside" / "model")
    (tmp_path / "root" / "gone").symlink_to(tmp_path / "nothing")
    (tmp_path / "root" / "itself").symlink_to(tmp_path / "root" / "itself")
    assert [one.name for one in repository.sources()] == ["inside", "real"]


def test_a_folder_that_may_not_be_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = made(tmp_path, "lost+found/manifest.json", "real/manifest.json")
    monkeypatch.setattr("os.access", lambda path, _: path.name != "lost+found")
    assert [one.name for one in repository.sources()] == ["real"]


def test_the_newest_version_is_found_unless_one_is_named(tmp_path: Path) -> None:
    repository = made(tmp_path, "many/2/manifest.json", "many/10/manifest.json")
    assert repository.find(Target("many")).folder == tmp_path / "many" / "10"
    assert repository.find(Target("many", "2")).folder == tmp_path / "many" / "2"
    with pytest.raises(UnknownModel, match="many has no such version; it has: 2, 10"):
        repository.find(Target("many", "3"))
    for name in ("../many", "many/2", "", "/", "other"):
        with pytest.raises(UnknownModel, match="it has: many"):
            repository.find(Target(name))


def test_a_model_of_the_settings_hides_one_of_the_folder(tmp_path: Path) -> None:
    made(tmp_path, "named/5/manifest.json", "other/manifest.json")
    fixed = Source("named", "1", Path("elsewhere"))
    repository = Repository(tmp_path, (fixed,))
    assert repository.find(Target("named")) == fixed
    assert [one.name for one in repository.sources()] == ["named", "other"]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError):
        Repository(tmp_path / "missing").sources()


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("bge-m3", Target("bge-m3")),
        ("bge-m3@3", Target("bge-m3", "3")),
        ("org/a@b@3", Target("org/a@b", "3")),
        ("@3", Target("@3")),
        ("bge-m3@", Target("bge-m3@")),
    ],
)
def test_targets_are_parsed(text: str, target: Target) -> None:
    assert Target.parse(text) == target
    assert str(target) == text
