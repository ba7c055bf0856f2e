"""A corpus of Parquet files and the folder of their vectors: what is done, and one file's run.

OUT/NAME.parquet            the vectors of NAME.parquet, as `headscope encode` writes them
OUT/NAME.parquet.part/      an unfinished file's windows, of `headscope encode` too
OUT/.headscope/job.json     what the corpus is encoded with
OUT/.headscope/NAME.json    what became of a file
OUT/.headscope/lock         held by the run that hands files out
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
from service.files.parts import settle, settle_folder
from service.files.run import Say, run
from service.files.work import WorkFolder
from service.settings import Settings
from service.system.distribution import version

RECORD = ".headscope"
LIMITS = ("engine", "device", "max_batch_tokens", "max_length", "max_characters")
"""Settings that vectors follow from, beside the model."""


@dataclass(frozen=True)
class Receipt:
    """What became of a file."""

    size: int
    """Bytes of the input."""
    mtime_ns: int
    """Time of the input's last change."""
    code: int | None = None
    """Exit code of its run: 0 done, 3 done but for rows that were skipped; None while it runs."""


class CorpusFolder(WorkFolder):
    """The folder of a corpus' outputs, whose record is held by one run at a time."""

    known = re.compile(rf"{WorkFolder.known.pattern}|.+\.parquet\.(json|draft)", re.DOTALL)

    def __init__(self, out: Path) -> None:
        super().__init__(out / "corpus")
        self.folder = out / RECORD

    def output(self, source: Path) -> Path:
        """Where the vectors of a file go."""
        return self.out.parent / source.name

    def receipt(self, source: Path) -> Receipt | None:
        """What became of a file; None where it was never begun."""
        path = self._path(source)
        return Receipt(**orjson.loads(path.read_bytes())) if path.exists() else None

    def keep(self, source: Path, receipt: Receipt) -> None:
        """Write down what became of a file."""
        draft = self._path(source).with_suffix(".draft")
        with draft.open("wb") as file:
            file.write(orjson.dumps(receipt))
            settle(file)
        draft.replace(self._path(source))
        settle_folder(self.folder)

    def _path(self, source: Path) -> Path:
        return self.folder / f"{source.name}.json"


def corpus_files(options: FileOptions) -> list[Path]:
    """The Parquet files that the inputs name.

    Raises:
        UsageError: an input is no Parquet file, or two have one name.

    """
    if others := [name for name in options.inputs if Path(name).suffix != PARQUET]:
        raise UsageError(f"{others[0]} is no .parquet file, of which a corpus consists")
    paths = [source.path for source in find_sources(options, Path())]
    seen: dict[str, Path] = {}
    for path in paths:
        if path.name in seen:
            raise UsageError(f"{seen[path.name]} and {path} would both become {path.name}")
        seen[path.name] = path
    return paths


def job_of(options: FileOptions, settings: Settings, artifact: Artifact) -> Mapping[str, Any]:
    """All that the outputs follow from, beside the inputs."""
    limits = {name: getattr(settings, name) for name in LIMITS}
    about = {"model": artifact.sha256, "version": version()}
    return {**options.identity, **limits, **about}


def unfinished(folder: CorpusFolder, paths: Sequence[Path]) -> list[Path]:
    """The files that are still to be encoded, the largest first, so that none is left for the end.

    Raises:
        UsageError: a file was changed since it was encoded.

    """
    left = []
    for path in paths:
        receipt, now = folder.receipt(path), _state(path)
        if receipt is None or receipt.code is None or not folder.output(path).exists():
            left.append(path)
        elif (receipt.size, receipt.mtime_ns) != (now.size, now.mtime_ns):
            raise UsageError(f"{path} was changed since it was encoded: --restart")
    return sorted(left, key=lambda path: -path.stat().st_size)


def encode_file(
    source: Path, options: FileOptions, settings: Settings, engine: Engine, say: Say
) -> int:
    """Encode one file of a corpus, or go on where another process was killed.

    Args:
        source: the file.
        options: of every file; `out` is any file of the corpus' folder.
        settings: the model and its engine.
        engine: computes, and stays open.
        say: told of the steps before the first text.

    Returns:
        The exit code of `headscope encode`.

    Raises:
        UsageError, ModelError, ServiceError, ValueError, OSError: see `service.files.run`.

    """
    folder = CorpusFolder(options.out.parent)
    out, before, now = folder.output(source), folder.receipt(source), _state(source)
    begun, there = before is not None, out.exists() and not WorkFolder(out).folder.exists()
    if there and not begun and not options.restart:
        raise UsageError(f"{out} is there already: --restart replaces it")
    again = there if begun else options.restart
    folder.keep(source, now)
    own = replace(options, inputs=(str(source),), out=out, restart=again)
    code = run(own, settings, say, engine)
    folder.keep(source, replace(now, code=code))
    return code


def _state(path: Path) -> Receipt:
    found = path.stat()
    return Receipt(found.st_size, found.st_mtime_ns)
