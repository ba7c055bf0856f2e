"""Check of a release: the commit that is built, and files that a wheel must have."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from deploy.image.engine import EngineError
from deploy.release.check import PARTS, export_commit, inspect


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def test_only_a_commit_is_built(tmp_path: Path) -> None:
    root, scratch = tmp_path / "root", tmp_path / "scratch"
    root.mkdir()
    scratch.mkdir()
    git(root, "init")
    (root / "a").write_text("committed")
    git(root, "add", "a")
    git(root, "commit", "--date", "@1000 +0000", "-m", "a")
    assert export_commit(root, scratch).isdigit()
    assert (scratch / "source" / "a").read_text() == "committed"
    (root / "b").write_text("untracked")
    with pytest.raises(EngineError, match=r"(?s)built from a commit.*\?\? b"):
        export_commit(root, scratch)


@pytest.mark.parametrize("name", PARTS)
def test_a_wheel_without_licence_types_or_page_is_refused(name: str, tmp_path: Path) -> None:
    wanted = [*PARTS[name], f"{name}-1.0.dist-info/licenses/LICENSE"]
    for missing in [None, *wanted]:
        wheel = tmp_path / f"{name}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for file in wanted:
                if file != missing:
                    archive.writestr(file, "")
        if missing is None:
            inspect(wheel)
        else:
            with pytest.raises(EngineError, match=f"lacks {missing}"):
                inspect(wheel)
