"""Files, folders and columns that are read, and options that exclude each other."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import os
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BitImageProcessorPil, Dinov2WithRegistersModel, ViTImageProcessorPil

from model.artifact.manifest import Artifact
from service.engines.contract import Pooling, TextTask
from service.engines.fake import FakeEngine
from service.errors import EngineFailed
from service.files.inputs import find_sources, survey
from service.files.options import Encoding, FileOptions, UsageError
from service.files.rows import InputFailure, Row, TextLines, read_picture
from service.files.run import ROW_CHARACTERS, run, windows
from service.settings import Settings
from service.system.distribution import install_command
from tests.service.files.conftest import Encode, FewBatches
from tests.service.pictures import pictures_of


def options(*inputs: Any, out: str = "out.npy", **fields: Any) -> FileOptions:
    return FileOptions(tuple(map(str, inputs)), Path(out), **fields)


def test_globs_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.jsonl", "sub/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text\n", encoding="utf-8")
    chosen = options(tmp_path / "c.jsonl", f"{tmp_path}/**/*.txt")
    found = find_sources(chosen, tmp_path / "spool")
    assert [source.path.relative_to(tmp_path).as_posix() for source in found] == [
        *("c.jsonl", "a.txt", "b.txt", "sub/d.txt")
    ]


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        (["nothing.txt"], r"there is no file nothing\.txt"),
        (["no*.txt"], r"no file matches no\*\.txt"),
        ([__file__], r"its ending must be one of \.txt, \.jsonl, \.csv, \.parquet"),
        (["-", "-"], "standard input can be read once"),
    ],
)
def test_what_is_no_input(inputs: list[str], problem: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=problem):
        find_sources(options(*inputs), tmp_path)


def test_parquet_without_pyarrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("service.system.distribution.is_installed", lambda _: False)
    with pytest.raises(ValueError, match="Parquet needs pyarrow") as refused:
        find_sources(options("a.txt", out="out.parquet"), tmp_path)
    assert install_command("files") in str(refused.value)


def test_a_survey(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("one\ntwo\n", encoding="utf-8")
    chosen = options(source)
    found = survey(chosen, find_sources(chosen, tmp_path))
    content = hashlib.sha256(source.read_bytes()).hexdigest()
    assert (found.rows, found.identity) == (2, [{"name": str(source), "sha256": content}])
    assert [row.text for row in found.read()] == ["one", "two"]
    found.check_unchanged()
    os.utime(source, (0, 0))
    with pytest.raises(InputFailure, match=r"a\.txt was changed while it was read"):
        found.check_unchanged()


def test_standard_input(encode: Encode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file of the same lines."""
    lines = b"a cat\na dog\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    (tmp_path / "a.txt").write_bytes(lines)
    assert encode("-", tmp_path / "in.npy") == 0
    assert encode(tmp_path / "a.txt", tmp_path / "file.npy") == 0
    np.testing.assert_array_equal(np.load(tmp_path / "in.npy"), np.load(tmp_path / "file.npy"))


@pytest.mark.parametrize(
    ("out", "fields", "problem"),
    [
        ("a.csv", {}, r"its ending must be one of \.parquet, \.jsonl, \.npy"),
        ("a.npy", {"kind": "tokens"}, r"a \.npy file cannot hold tokens: write \.npz"),
        ("a.npz", {"chunk_size": 9}, "--chunk-size is of chunks: add --outputs chunks"),
        ("a.npz", {"late": False}, "--no-late is of chunks"),
        ("a.npz", {"kind": "tokens", "overflow": "windows"}, "--overflow windows is of chunks"),
        ("a.npz", {"truncate": True, "overflow": "error"}, "--overflow error exclude"),
        ("a.npz", {"kind": "chunks", "chunk_size": 9, "chunk_overlap": 5}, "than half of --chunk"),
        ("a.npz", {"kind": "chunks", "late": False, "truncate": True}, "with --no-late each chunk"),
    ],
)
def test_what_is_refused(out: str, fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        options("a.txt", out=out, encoding=Encoding(**fields))


def test_what_the_content_follows_from() -> None:
    """Handling of bad rows and the key of a service do not affect the content."""
    one = FileOptions(("a",), Path("a.npy"))
    other = FileOptions(("a",), Path("a.npy"), on_error="skip", api_key="secret", restart=True)
    assert one.identity == other.identity
    with pytest.raises(UsageError, match="not an address of http"):
        options("a", url="ftp://x")
    assert "secret" not in repr(other)
    assert FileOptions(("a",), Path("a.npy"), column="body").identity != one.identity


PROCESSOR = ViTImageProcessorPil(
    size={"height": 8, "width": 12}, image_mean=[0.5] * 3, image_std=[0.25] * 3
)


def expected(artifact: Artifact, paths: list[str]) -> np.ndarray:
    """Return the engine's vectors of pictures as transformers reads them."""
    tasks = []
    for path in paths:
        file = b64encode(Path(path).read_bytes()).decode()
        values = PROCESSOR(images=file, return_tensors="pt")["pixel_values"]
        patches = torch.nn.functional.unfold(values, 4, stride=4)[0].T
        pixels = torch.cat([torch.zeros(1, 48), patches]).numpy()
        ids = np.array([1, 0, 0, 0, 0, 0, 0])
        tasks.append(TextTask(ids, 0 * ids, pooling=Pooling(2, "mean", 0), pixels=pixels))
    outputs = FakeEngine(pictures_of(artifact).manifest.config).run(tasks)
    return np.stack([output.pooled for output in outputs if output.pooled is not None])


def test_a_folder(
    encode_pictures: Encode,
    artifact: Artifact,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out.parquet"
    wanted = {"pooling": "mean", "normalize": False}
    assert encode_pictures(photos, out, on_error="skip", **wanted) == 3
    table = pq.read_table(out)
    assert table.column_names == ["image", "embedding"]
    paths = table["image"].to_pylist()
    assert paths == [
        *(str(photos / f"{number:02}.PNG") for number in range(0, 12, 2)),
        *(str(photos / "more" / f"{number:02}.PNG") for number in range(1, 12, 2)),
    ]
    found = np.array(table["embedding"].to_pylist(), np.float32)
    np.testing.assert_allclose(found, expected(artifact, paths), atol=1e-6)
    said = capsys.readouterr().err
    assert "skipped" in said
    assert f"{photos}/damaged.jpg: the JPEG file is truncated or damaged" in said
    assert f"{photos}/moving.gif: the GIF file is animated; send one frame, or pass" in said
    assert encode_pictures(photos, out, on_error="skip", restart=True, first_frame=True) == 3
    assert pq.read_table(out).num_rows == 13


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_column_of_paths(
    ending: str,
    encode_pictures: Encode,
    artifact: Artifact,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Paths start at the table's own folder."""
    names = ["photos/00.PNG", str(photos / "more" / "01.PNG"), "photos/none.png"]
    source = tmp_path / f"table.{ending}"
    if ending == "csv":
        with source.open("w", newline="") as file:
            csv.writer(file).writerows([["id", "file"], *enumerate(names)])
    else:
        pq.write_table(pa.table({"id": [0, 1, 2], "file": names}), source)
    out = tmp_path / "out.jsonl"
    wanted = {"pooling": "mean", "normalize": False, "on_error": "skip"}
    assert encode_pictures(source, out, image_column="file", **wanted) == 3
    assert f"{source.name}, row 3: {photos}/none.png: No such file" in capsys.readouterr().err
    table = pa.Table.from_pylist([json.loads(line) for line in out.read_text().splitlines()])
    assert table["file"].to_pylist() == names[:2]
    vectors = expected(artifact, [str(photos / "00.PNG"), names[1]])
    np.testing.assert_allclose(table["embedding"].to_pylist(), vectors, atol=1e-6)


def test_a_run_resumes(
    encode_pictures: Encode,
    artifact: Artifact,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.files.local.PICTURES_WINDOW_CHARACTERS", 400)
    wanted = {"on_error": "skip", "kind": "tokens"}
    assert encode_pictures(photos, tmp_path / "whole.npz", **wanted) == 3
    failing = FewBatches(pictures_of(artifact), batches=3)
    with pytest.raises(EngineFailed):
        encode_pictures(photos, tmp_path / "out.npz", engine=failing, **wanted)
    rest = FewBatches(pictures_of(artifact))
    assert encode_pictures(photos, tmp_path / "out.npz", engine=rest, **wanted) == 3
    assert 0 < rest.texts < 12
    assert (tmp_path / "out.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_changed_pictures_are_not_resumed(
    encode_pictures: Encode, artifact: Artifact, photos: Path, tmp_path: Path
) -> None:
    failing = FewBatches(pictures_of(artifact), batches=0)
    with pytest.raises(EngineFailed):
        encode_pictures(photos, tmp_path / "out.npy", engine=failing, on_error="skip")
    (photos / "00.PNG").write_bytes((photos / "02.PNG").read_bytes())
    with pytest.raises(UsageError, match="--restart"):
        encode_pictures(photos, tmp_path / "out.npy", on_error="skip")


@pytest.mark.parametrize(
    ("names", "options", "problem"),
    [
        (["photos", "photos/notes.txt"], {}, "encode them apart"),
        (["photos"], {"image_column": "embedding"}, "a column that the output adds"),
        (["empty"], {}, "empty has no picture: endings are .bmp, .gif"),
    ],
)
def test_inputs_that_do_not_fit(
    names: list[str], options: dict[str, str], problem: str, photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    inputs = tuple(str(tmp_path / name) for name in names)
    with pytest.raises(UsageError, match=problem):
        find_sources(FileOptions(inputs, tmp_path / "out.parquet", **options), tmp_path / "spool")


def test_a_model_of_texts_refuses_pictures(encode: Encode, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the inputs are pictures, and small reads texts"):
        encode(photos, tmp_path / "out.npy")


def test_a_model_of_pictures_refuses_texts(
    encode_pictures: Encode, photos: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="reads pictures: name files or folders of pictures"):
        encode_pictures(photos / "notes.txt", tmp_path / "out.npy")
    with pytest.raises(UsageError, match="--truncate is for texts"):
        encode_pictures(photos, tmp_path / "out.npy", truncate=True)
    with pytest.raises(UsageError, match="--outputs sparse is for texts"):
        encode_pictures(photos, tmp_path / "out.npz", kind="sparse")


def test_files_that_cannot_be_read(photos: Path) -> None:
    size = (photos / "00.PNG").stat().st_size
    assert isinstance(read_picture(str(photos / "00.PNG"), size), bytes)
    for path, most, problem in (("00.PNG", size - 1, "has more than"), ("no.png", 9, "No such")):
        refused = read_picture(str(photos / path), most)
        assert not isinstance(refused, bytes)
        assert problem in refused.problem


def test_vectors_are_those_of_transformers(
    picture_artifact: Artifact, picture_checkpoint: Path, photos: Path, tmp_path: Path
) -> None:
    """The whole command, with a model of two registers and 2 × 3 patches."""
    out, inputs = tmp_path / "out.npy", (str(photos / "more"),)
    options = FileOptions(inputs, out, encoding=Encoding(pooling="cls", normalize=False))
    assert run(options, Settings(artifact=picture_artifact.folder, device="cpu"), print) == 0
    model = Dinov2WithRegistersModel.from_pretrained(picture_checkpoint).eval()
    processor = BitImageProcessorPil.from_pretrained(picture_checkpoint)
    files = [b64encode(path.read_bytes()).decode() for path in sorted(photos.glob("more/*"))]
    with torch.no_grad():
        last = model(**processor(images=files, return_tensors="pt")).last_hidden_state
    np.testing.assert_allclose(np.load(out), last[:, 0].numpy(), atol=1e-5)


def test_a_model_with_two_towers_encodes_each_by_its_own(
    encode: Encode,
    artifact: Artifact,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vision = pictures_of(artifact)
    both = dataclasses.replace(artifact, vision=vision)
    monkeypatch.setattr("service.files.run.open_artifact", lambda *_: both)
    assert encode(photos / "notes.txt", tmp_path / "texts.npy") == 0
    own = FewBatches(vision)
    wanted = {"pooling": "mean", "normalize": False}
    assert encode(photos / "more", tmp_path / "pictures.npy", engine=own, **wanted) == 0
    assert np.load(tmp_path / "texts.npy").shape == (1, 128)
    vectors = expected(artifact, [str(path) for path in sorted(photos.glob("more/*"))])
    np.testing.assert_allclose(np.load(tmp_path / "pictures.npy"), vectors, atol=1e-6)


SOURCE = TextLines(Path("a"), "a", "text", frozenset())


@given(st.lists(st.integers(0, 300), max_size=60), st.randoms(use_true_random=False))
def test_what_is_left_of_all_windows(lengths: list[int], chance: object) -> None:
    rows = [Row(SOURCE, i + 1, "x" * n) for i, n in enumerate(lengths)]
    whole = list(windows(rows, 400, {}))
    assert [row for _, window in whole for row in window] == rows
    for start, window in whole:
        assert window == rows[start : start + len(window)]
        size = sum(ROW_CHARACTERS + len(row.text or "") for row in window)
        assert size <= 400 or len(window) == 1
    done = [window for window in whole if chance.random() < 0.5]  # type: ignore[attr-defined]
    left = list(windows(rows, 400, {start: start + len(window) for start, window in done}))
    assert left == [window for window in whole if window not in done]
