"""Whole runs: a resumed run ends as an undisturbed one; progress."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open

from model.artifact.manifest import Artifact
from service.errors import EngineFailed
from service.files.options import UsageError
from service.files.rows import InputFailure
from service.files.run import Progress
from service.inference.fingerprint import fingerprint_of
from tests.service.files.conftest import TEXTS, Encode, FewBatches
from tests.service.several import fake_of

FORMATS = (".npy", ".npz", ".safetensors", ".parquet", ".jsonl")


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_stopped_goes_on(
    encode: Encode, rows: Path, artifact: Artifact, tmp_path: Path, suffix: str
) -> None:
    """The bytes are equal, no kept text is computed again, and no other file is left."""
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    assert encode(rows, whole) == 0
    with pytest.raises(EngineFailed):
        encode(rows, out, FewBatches(artifact, 120))
    kept = len([*tmp_path.glob("out*.part/*.part")])
    assert kept >= 1
    assert not out.exists()
    rest = FewBatches(artifact)
    assert encode(rows, out, rest) == 0
    assert 0 < rest.texts <= len(TEXTS) - 30 * kept
    assert out.read_bytes() == whole.read_bytes()
    assert left(tmp_path) == {"rows.jsonl", whole.name, out.name}


def test_a_file_names_its_model(
    encode: Encode, rows: Path, artifact: Artifact, tmp_path: Path
) -> None:
    expected = fingerprint_of(artifact, fake_of(artifact).provider)
    encode(rows, tmp_path / "out.parquet")
    schema = pq.read_schema(tmp_path / "out.parquet")
    assert schema.metadata[b"model_fingerprint"] == expected.encode()
    encode(rows, tmp_path / "out.safetensors")
    with safe_open(tmp_path / "out.safetensors", "numpy") as file:
        assert file.metadata() == {"model_fingerprint": expected}


def test_a_text_has_its_own_row(encode: Encode, rows: Path, tmp_path: Path) -> None:
    """Its row equals the row of a run of this text alone: the engine answers from a hash of ids."""
    encode(rows, tmp_path / "all.npy")
    found = np.load(tmp_path / "all.npy")
    for number in (0, 17, 299):
        (tmp_path / "one.txt").write_text(TEXTS[number], encoding="utf-8")
        encode(tmp_path / "one.txt", tmp_path / "one.npy", restart=True)
        np.testing.assert_array_equal(np.load(tmp_path / "one.npy"), found[number : number + 1])
    assert len(np.unique(found, axis=0)) == len(TEXTS)


@pytest.mark.slow
def test_a_killed_process_leaves_what_it_did(
    artifact: Artifact, rows: Path, tmp_path: Path
) -> None:
    many, out = tmp_path / "many.jsonl", tmp_path / "out.parquet"
    many.write_text(rows.read_text(encoding="utf-8") * 5, encoding="utf-8")
    command = [sys.executable, "-m", "service", "encode", str(many), "--out", str(out)]
    command += ["--artifact", str(artifact.folder), "--device", "cpu", "--max-batch-tokens", "16"]
    environment = {**os.environ, "HEADSCOPE_ENGINE": "fake"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not [*tmp_path.glob("out.parquet.part/*.part")]:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not out.exists()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    found = pq.read_table(out)
    assert found["text"].to_pylist() == TEXTS * 5
    assert found["id"].to_pylist() == [*range(300)] * 5
    vectors = np.stack(found["embedding"].to_numpy(zero_copy_only=False))
    np.testing.assert_array_equal(vectors[:300], vectors[1200:])
    assert len(np.unique(vectors, axis=0)) == 300


def test_another_run_is_refused(
    encode: Encode, rows: Path, artifact: Artifact, tmp_path: Path
) -> None:
    """Other options, another input, and an input as the output."""
    out = tmp_path / "out.npy"
    with pytest.raises(EngineFailed):
        encode(rows, out, FewBatches(artifact, 120))
    before = left(tmp_path / "out.npy.part")
    for change in ("layer", "truncate"):
        with pytest.raises(UsageError, match=f"with other {change} .*--restart"):
            encode(rows, out, **{change: 1})
    assert left(tmp_path / "out.npy.part") == before
    rows.write_text(rows.read_text(encoding="utf-8").replace("people", "person"), encoding="utf-8")
    with pytest.raises(UsageError, match="with other input"):
        encode(rows, out)
    assert encode(rows, out, restart=True, layer=1) == 0
    with pytest.raises(UsageError, match="is an input too"):
        encode(rows, rows, restart=True)


BAD = '{"text": "a cat"}\n{"text": 3}\nnot JSON\n{"text": "a dog"}\n'


def test_a_bad_row_stops_before_anything_is_computed(
    encode: Encode, artifact: Artifact, tmp_path: Path
) -> None:
    source, engine = tmp_path / "bad.jsonl", FewBatches(artifact)
    source.write_text(BAD, encoding="utf-8")
    with pytest.raises(InputFailure, match=r"bad\.jsonl, line 2: 'text' is a number, not a text"):
        encode(source, tmp_path / "out.npy", engine)
    assert engine.texts == 0
    assert left(tmp_path) == {"bad.jsonl"}


@pytest.mark.parametrize("suffix", FORMATS)
def test_bad_rows_are_skipped_and_told(
    encode: Encode, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    """This includes a row that fails only when tokenised; the others keep their order."""
    source, out = tmp_path / "bad.jsonl", tmp_path / f"out{suffix}"
    source.write_text(BAD + '{"text": "' + "word " * 600 + '"}\n', encoding="utf-8")
    assert encode(source, out, on_error="skip") == 3
    said = capsys.readouterr().err
    assert "skipped" in said
    lines = [line for line in said.splitlines() if "skipped" in line]
    assert ["line 2" in lines[0], "line 3" in lines[1], "line 5" in lines[2]] == [True] * 3
    assert "tokens; at most" in lines[2]
    if suffix == ".parquet":
        assert pq.read_table(out)["text"].to_pylist() == ["a cat", "a dog"]
    if suffix == ".npz":
        assert np.load(out)["rows"].tolist() == [0, 3]


def test_a_full_disk_is_one_line(
    encode: Encode, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("service.files.parts.sync", full)
        with pytest.raises(OSError, match=r"No space left on device; the same command resumes"):
            encode(rows, tmp_path / "out.npy")
    assert encode(rows, tmp_path / "out.npy") == 0


def test_a_damaged_part_is_computed_again(
    encode: Encode, rows: Path, artifact: Artifact, tmp_path: Path
) -> None:
    whole, out = tmp_path / "whole.npy", tmp_path / "out.npy"
    encode(rows, whole)
    with pytest.raises(EngineFailed):
        encode(rows, out, FewBatches(artifact, 120))
    first = tmp_path / "out.npy.part" / "000000000000.part"
    first.write_bytes(first.read_bytes()[:-7])
    assert encode(rows, out) == 0
    assert out.read_bytes() == whole.read_bytes()


def test_nothing_to_encode(encode: Encode, tmp_path: Path) -> None:
    (tmp_path / "none.txt").touch()
    with pytest.raises(InputFailure, match="no row"):
        encode(tmp_path / "none.txt", tmp_path / "out.npy")
    (tmp_path / "bad.jsonl").write_text("x\n", encoding="utf-8")
    with pytest.raises(InputFailure, match="every row was skipped"):
        encode(tmp_path / "bad.jsonl", tmp_path / "out.npy", on_error="skip")


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """The rate counts this run only, not an earlier one."""
    now = [0.0]
    with contextlib.closing(Progress(1000, 400, lambda: now[0])) as progress:
        now[0] = 9.9
        progress.advance(10)
        now[0] = 10.0
        progress.advance(90)
        now[0] = 12.0
        progress.advance(1)
    line = "headscope: 500 of 1,000 texts, 10 texts/s, 00:50 left\n"
    assert capsys.readouterr().err == line


def test_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with contextlib.closing(Progress(10, 4, unit="pictures")) as progress:
        progress.say("skipped a line")
        progress.advance(6)
    shown = terminal.getvalue()
    assert "10/10" in shown
    assert " pictures/s" in shown
    assert "headscope: skipped a line\n" in shown
