"""Folders of links, in which some files are replaced."""

from __future__ import annotations

from pathlib import Path

from model.sources.overlay import overlaid


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_files_are_replaced_and_added_in_any_folder(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "inner" / "deep").mkdir(parents=True)
    own = {"a": "1", "b": "2", "inner/c": "3", "inner/d": "4", "inner/deep/e": "5"}
    for name, content in own.items():
        (checkpoint / name).write_text(content)
    written = {"a": "new", "inner/c": "new", "other/f": "new"}
    folder = overlaid(checkpoint, written, tmp_path / "folders")
    assert contents(checkpoint) == own
    assert contents(folder) == {"a": "new", "b": "2", "inner/c": "new", "inner/d": "4"} | {
        "other/f": "new"
    }  # rglob does not follow the link to inner/deep
    assert (folder / "inner" / "deep" / "e").read_text() == "5"
    assert overlaid(checkpoint, written, tmp_path / "folders") == folder
    assert overlaid(checkpoint, {"a": "newer"}, tmp_path / "folders") != folder
    assert len(list((tmp_path / "folders").iterdir())) == 2
