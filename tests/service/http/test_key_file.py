"""Named keys from a file: its form, its faults, and its changes while the service runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from service.http import key_file
from service.http.key_file import KeyFile, read_keys

GOOD = "# of the search team\nsearch:s3cret:with:colons\n\n  jobs.nightly-1:0ther!\n"
KEYS = {"search": "s3cret:with:colons", "jobs.nightly-1": "0ther!"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(GOOD, encoding="utf-8")
    file.chmod(0o600)
    return file


def test_a_line_a_key(path: Path) -> None:
    assert read_keys(path) == KEYS


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds no key"),
        (b"# nothing\n\n", "holds no key"),
        (b"a:1\ns3cret\n", "line 2: name:key is needed"),
        (b":s3cret\n", "line 1: name:key is needed"),
        (b"two words:s3cret\n", "line 1: name:key is needed"),
        (b"a:\n", "line 1: the key is empty"),
        (b"a:s3cret s3cret\n", "line 1: the key is empty, or not of printable"),
        (b"a:s3cret\nb:other\na:third\n", "line 3: this name or key stands"),
        (b"a:s3cret\nb:s3cret\n", "line 2: this name or key stands"),
        (b"a:\xff\n", "it is not UTF-8"),
    ],
)
def test_faults_are_told_by_line_and_never_the_key(path: Path, content: bytes, says: str) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=says) as refused:
        KeyFile(path)
    assert "s3cret" not in str(refused.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"keys cannot be read: No such file"):
        KeyFile(tmp_path / "keys")


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets the time between two looks pass."""
    now = [0.0]
    monkeypatch.setattr(key_file.time, "monotonic", lambda: now[0])

    def pass_time() -> None:
        now[0] += key_file.LOOK_SECONDS

    return pass_time


def test_another_file_in_its_place_is_read(
    path: Path, tmp_path: Path, later: Callable[[], None]
) -> None:
    """As Kubernetes changes a mounted secret, and as an editor writes."""
    file = KeyFile(path)
    later()
    assert not file.changed()
    other = tmp_path / "other"
    other.write_text("new:key\n", encoding="utf-8")
    other.replace(path)
    assert not file.changed()
    later()
    assert file.changed()
    assert file.keys == {"new": "key"}
    assert not file.changed()


def test_a_damaged_file_leaves_the_keys_from_before(
    path: Path, later: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    file = KeyFile(path)
    for content in ("s3cret\n", None):
        path.unlink() if content is None else path.write_text(content, encoding="utf-8")
        later()
        assert not file.changed()
        assert file.keys == KEYS
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert all(line.endswith("; the keys from before stay") for line in said)
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(("mode", "told"), [(0o640, False), (0o644, True)])
def test_a_file_that_everybody_reads_is_told(
    path: Path, mode: int, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path.chmod(mode)
    KeyFile(path)
    assert ("can be read by every user" in caplog.text) is told
