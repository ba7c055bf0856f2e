"""Corpus of Parquet files, the folder of their vectors, and the encoding of one file.

OUT/NAME.parquet            the vectors of NAME.parquet, as `headscope encode` writes them
OUT/NAME.parquet.part/      windows of an unfinished file, as `headscope encode` writes them
OUT/.headscope/job.json     options, model and version with which the corpus is encoded
OUT/.headscope/NAME.json    receipt of a file
OUT/.headscope/lock         lock of the run that dispatches files
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from model.artifact.manifest import Artifact
from service.engines.contract import Engine
from service.files.inputs import PARQUET, find_sources
from service.files.options import FileOptions, UsageError
from service.files.parts import replacing
from service.files.run import Say, run
from service.files.work import WorkFolder
from service.settings import Settings
from service.system.distribution import version

RECORD = ".headscope"
LIMITS = ("engine", "device", "max_batch_tokens", "max_length", "max_characters")
"""Settings that affect the vectors, beside the model."""


@dataclass(frozen=True)
class Receipt:
    """State of a file's encoding."""

    size: int
    """Bytes of the input."""
    mtime_ns: int
    """Time of the input's last change."""
    code: int | None = None
    """Exit code of the run: 0 done, 3 done with skipped rows; None while it runs."""


class CorpusFolder(WorkFolder):
    """Folder of a corpus' outputs; one run at a time holds the lock of its record."""

    known = re.compile(rf"{WorkFolder.known.pattern}|.+\.parquet\.(json|draft)", re.DOTALL)

    def __init__(self, out: Path) -> None:
        super().__init__(out / "corpus")
        self.folder = out / RECORD

    def output(self, source: Path) -> Path:
        """Return the path of a file's vectors."""
        return self.out.parent / source.name

    def receipt(self, source: Path) -> Receipt | None:
        """Return a file's receipt; None if the file was never begun."""
        path = self._path(source)
        return Receipt(**orjson.loads(path.read_bytes())) if path.exists() else None

    def keep(self, source: Path, receipt: Receipt) -> None:
        """Write a file's receipt to disk, atomically."""
        with replacing(self._path(source)) as file:
            file.write(orjson.dumps(receipt))

    def _path(self, source: Path) -> Path:
        return self.folder / f"{source.name}.json"


def corpus_files(options: FileOptions) -> list[Path]:
    """Return the Parquet files that the inputs name.

    Raises:
        UsageError: an input is not a Parquet file, or two files have the same name.

    """
    if others := [name for name in options.inputs if Path(name).suffix != PARQUET]:
        raise UsageError(f"{others[0]} is not a .parquet file: a corpus takes only those")
    paths = [source.path for source in find_sources(options, Path())]
    seen: dict[str, Path] = {}
    for path in paths:
        if path.name in seen:
            raise UsageError(f"{seen[path.name]} and {path} would both become {path.name}")
        seen[path.name] = path
    return paths


def job_of(options: FileOptions, settings: Settings, artifact: Artifact) -> Mapping[str, Any]:
    """Return everything beside the inputs that determines the outputs."""
    limits = {name: getattr(settings, name) for name in LIMITS}
    about = {"model": artifact.sha256, "version": version()}
    return {**options.identity, **limits, **about}


def unfinished(folder: CorpusFolder, paths: Sequence[Path]) -> list[Path]:
    """Return the files still to be encoded, the largest first, so that no large file starts last.

    Raises:
        UsageError: a file was changed since it was encoded.

    """
    left = []
    for path in paths:
        receipt, now = folder.receipt(path), _state(path)
        if receipt is None or receipt.code is None or not folder.output(path).exists():
            left.append(path)
        elif (receipt.size, receipt.mtime_ns) != (now.size, now.mtime_ns):
            raise UsageError(f"{path} was changed since it was encoded: encode anew with --restart")
    return sorted(left, key=lambda path: -path.stat().st_size)


def encode_file(
    source: Path, options: FileOptions, settings: Settings, engine: Engine, say: Say
) -> int:
    """Encode one file of a corpus, or resume after another process was killed.

    Args:
        source: file to encode.
        options: options of every file; `out` is any file of the corpus' folder.
        settings: settings of the model and its engine.
        engine: engine that computes; it stays open.
        say: function that logs the steps before the first text.

    Returns:
        The exit code of `headscope encode`.

    Raises:
        UsageError, ModelError, ServiceError, ValueError, OSError: see `service.files.run`.

    """
    folder = CorpusFolder(options.out.parent)
    out, before, now = folder.output(source), folder.receipt(source), _state(source)
    begun, there = before is not None, out.exists() and not WorkFolder(out).folder.exists()
    if there and not begun and not options.restart:
        raise UsageError(f"{out} exists already: --restart replaces it")
    again = there if begun else options.restart
    folder.keep(source, now)
    own = replace(options, inputs=(str(source),), out=out, restart=again)
    code = run(own, settings, say, engine)
    folder.keep(source, replace(now, code=code))
    return code


def _state(path: Path) -> Receipt:
    status = path.stat()
    return Receipt(status.st_size, status.st_mtime_ns)
