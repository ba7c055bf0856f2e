from __future__ import annotations

from pathlib import Path

import pytest

from model.errors import ArtifactError
from model.export.placing import placing


def test_it_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"

    def fail() -> None:
        with placing(out) as folder:
            (folder / "x").touch()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(out.parent.iterdir()) == []
    with placing(out) as folder:
        (folder / "x").touch()
        assert not out.exists()
    assert [path.name for path in out.iterdir()] == ["x"]
    assert list(out.parent.iterdir()) == [out]


def test_a_taken_place(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(ArtifactError, match="exists and is not an empty folder"), placing(tmp_path):
        pass
    out = tmp_path / "out"

    def take() -> None:
        with placing(out):
            out.mkdir()
            (out / "x").touch()

    with pytest.raises(ArtifactError, match="was taken while"):
        take()
