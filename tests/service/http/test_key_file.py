"""Named keys from a file: format, errors, and changes while the service runs."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from pathlib import Path

import pytest

from service.http.admission import (
    MAX_BYTES,
    PAUSE_LINES,
    PAUSE_SECONDS,
    ApiKeys,
    KeyFile,
    digest_of,
    read_names,
)

GOOD = "# of the search team\nsearch:s3cret:with:colons\n\n  jobs.nightly-1:0ther!\n"
KEYS = {digest_of(b"s3cret:with:colons"): "search", digest_of(b"0ther!"): "jobs.nightly-1"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(GOOD, encoding="utf-8")
    file.chmod(0o600)
    return file


def test_a_line_a_key(path: Path) -> None:
    assert read_names(path) == KEYS


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


def test_a_device_is_refused_before_it_is_read(path: Path) -> None:
    with pytest.raises(ValueError, match="keys file /dev/zero is a pipe, device or folder"):
        KeyFile(Path("/dev/zero"))
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ValueError, match="has 16777217 bytes, and at most 16777216 are read"):
        KeyFile(path)


def test_another_file_in_its_place_is_read(path: Path, tmp_path: Path) -> None:
    """Kubernetes changes a mounted secret this way, and editors write files this way."""
    file = KeyFile(path)
    file.refresh()
    assert file.names == KEYS
    other = tmp_path / "other"
    other.write_text("new:key\n", encoding="utf-8")
    other.replace(path)
    file.refresh()
    assert file.names == {digest_of(b"key"): "new"}


def test_a_damaged_file_leaves_the_keys_from_before(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = KeyFile(path)
    for content in ("s3cret\n", None):
        path.unlink() if content is None else path.write_text(content, encoding="utf-8")
        file.refresh()
        file.refresh()
        assert file.names == KEYS
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert all(line.endswith("; the keys from before stay") for line in said)
    assert "s3cret" not in caplog.text


def write_keys(path: Path, count: int, word: str) -> None:
    lines = (f"name-{number}:{word}-{number}\n" for number in range(count))
    path.write_text("".join(lines), encoding="utf-8")


def test_a_file_is_read_in_time_that_grows_with_its_lines(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 times the keys take less than 160 times as long; a quadratic reader took 1,600 times."""
    monkeypatch.setattr("service.http.admission.PAUSE_SECONDS", 0.0)

    def seconds(count: int) -> float:
        began = time.thread_time()
        assert len(read_names(path)) == count
        return time.thread_time() - began

    least = []
    for count in (500, 20_000):
        write_keys(path, count, "s3cret")
        least.append(min(seconds(count) for _ in range(3)))
    assert least[1] < 160 * least[0]


def test_the_parser_pauses_for_the_event_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("service.http.admission.time.sleep", pauses.append)
    write_keys(path, 3 * PAUSE_LINES + 1, "s3cret")
    read_names(path)
    assert pauses == 3 * [PAUSE_SECONDS]


@pytest.mark.anyio
async def test_old_keys_hold_off_the_loop_until_new_ones_are_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread reads the file, so that neither requests nor the end of the service wait for it."""
    monkeypatch.setattr("service.http.admission.LOOK_SECONDS", 0.01)
    file = KeyFile(path)
    assert {thread.daemon for thread in threading.enumerate() if thread.name == "keys"} == {True}
    keys = ApiKeys(None, file)
    write_keys(path, 20_000, "new")

    def named(key: bytes) -> str:
        return keys.check({"path": "/health"}, {b"authorization": b"Bearer " + key})

    for _ in itertools.takewhile(lambda _: file.names == KEYS, range(10_000)):
        assert named(b"0ther!") or file.names != KEYS
        await asyncio.sleep(0.001)
    assert (named(b"0ther!"), named(b"new-19999")) == ("", "name-19999")


@pytest.mark.parametrize(("mode", "told"), [(0o640, False), (0o644, True)])
def test_a_file_that_everybody_reads_is_told(
    path: Path, mode: int, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path.chmod(mode)
    KeyFile(path)
    assert ("can be read by every user" in caplog.text) is told
