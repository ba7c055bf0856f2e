"""Encoding of a corpus file by file, on an engine that answers from a hash, without Ray."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deploy.ray.corpus import (
    CorpusFolder,
    corpus_files,
    encode_file,
    job_of,
    unfinished,
)
from model.artifact.manifest import Artifact
from service.errors import EngineFailed
from service.files.options import FileOptions, UsageError
from service.files.run import run
from service.settings import Settings
from tests.service.files.conftest import FewBatches

TEXTS = [f"{number} is the number of people in house {number % 7}" for number in range(120)]


@pytest.fixture
def settings(artifact: Artifact) -> Settings:
    return Settings(artifact=(artifact.folder,), device="cpu", max_batch_tokens=16)


@pytest.fixture
def options(tmp_path: Path) -> FileOptions:
    """Return options of two files, `a` the smaller, and a folder for their vectors."""
    for name, texts in ("a", TEXTS[:20]), ("b", TEXTS):
        pq.write_table(pa.table({"text": texts}), tmp_path / f"{name}.parquet")
    (tmp_path / "out").mkdir()
    pattern = str(tmp_path / "*.parquet")
    return FileOptions((pattern,), tmp_path / "out" / "corpus.parquet")


def test_a_killed_file_goes_on_and_is_that_of_the_command_line(
    artifact: Artifact, options: FileOptions, settings: Settings
) -> None:
    """Finished windows are not computed again, and finished files are not dispatched again."""
    small, large = corpus_files(options)
    folder = CorpusFolder(options.out.parent)
    with folder.held(restart=False):
        folder.begin(job_of(options, settings, artifact))
        assert unfinished(folder, [small, large]) == [large, small]
        with pytest.raises(EngineFailed):
            encode_file(large, options, settings, FewBatches(artifact, 75), print)
        assert unfinished(folder, [small, large]) == [large, small]
        engine = FewBatches(artifact)
        assert encode_file(large, options, settings, engine, print) == 0
        assert 0 < engine.texts < len(TEXTS)
        assert unfinished(folder, [small, large]) == [small]
    alone = options.out.with_name("alone.parquet")
    one = replace(options, inputs=(str(large),), out=alone)
    assert run(one, settings, print, FewBatches(artifact)) == 0
    assert folder.output(large).read_bytes() == alone.read_bytes()


def test_killed_between_output_and_receipt(
    artifact: Artifact, options: FileOptions, settings: Settings
) -> None:
    """The file is encoded again; a file of unknown origin is not replaced."""
    small, large = corpus_files(options)
    folder = CorpusFolder(options.out.parent)
    with folder.held(restart=False):
        encode_file(small, options, settings, FewBatches(artifact), print)
        receipt = folder.receipt(small)
        assert receipt is not None
        folder.keep(small, replace(receipt, code=None))
        assert unfinished(folder, [small]) == [small]
        assert encode_file(small, options, settings, FewBatches(artifact), print) == 0
        folder.output(large).write_bytes(b"somebody's")
        for _ in range(2):
            with pytest.raises(UsageError, match="--restart replaces it"):
                encode_file(large, options, settings, FewBatches(artifact), print)
        assert folder.output(large).read_bytes() == b"somebody's"
        again = replace(options, restart=True)
    with folder.held(restart=True):
        assert encode_file(large, again, settings, FewBatches(artifact), print) == 0
        assert pq.read_metadata(folder.output(large)).num_rows == len(TEXTS)


def test_what_does_not_fit_together(
    artifact: Artifact, options: FileOptions, settings: Settings, tmp_path: Path
) -> None:
    small, large = corpus_files(options)
    folder = CorpusFolder(options.out.parent)
    with folder.held(restart=False):
        folder.begin(job_of(options, settings, artifact))
        encode_file(small, options, settings, FewBatches(artifact), print)
        pq.write_table(pa.table({"text": TEXTS[:21]}), small)
        with pytest.raises(UsageError, match=r"a\.parquet was changed since it was encoded"):
            unfinished(folder, [small, large])
        other = job_of(replace(options, column="body"), settings, artifact)
        with pytest.raises(UsageError, match="belongs to a run with other column"):
            folder.begin(other)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.parquet").write_bytes(small.read_bytes())
    twice = replace(options, inputs=(*options.inputs, str(tmp_path / "elsewhere" / "*.parquet")))
    with pytest.raises(UsageError, match=r"would both become a\.parquet"):
        corpus_files(twice)
    with pytest.raises(UsageError, match=r"is not a \.parquet file"):
        corpus_files(replace(options, inputs=("-",)))
