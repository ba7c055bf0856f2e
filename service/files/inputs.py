"""Inputs of a run: the matching files, and a survey of their rows."""

from __future__ import annotations

import glob
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from service.files.options import COLUMNAR, FileOptions, UsageError, reserved_names
from service.files.rows import (
    CsvRecords,
    InputFailure,
    JsonLines,
    PictureFiles,
    Row,
    Source,
    TextLines,
    batches,
    is_of_pictures,
    state_of_pictures,
)
from service.system.distribution import require

if TYPE_CHECKING:
    from service.files.parquet import Schema

STDIN = "-"
PARQUET = ".parquet"
_LINES: dict[str, type[Source]] = {".txt": TextLines, ".jsonl": JsonLines, ".csv": CsvRecords}


@dataclass(frozen=True)
class Survey:
    """Result of a first reading of all inputs."""

    sources: Sequence[Source]
    rows: int
    identity: list[dict[str, str]]
    """Name and SHA-256 of each file."""
    states: list[tuple[int, int]]
    """Size and modification time of each file."""
    schema: Schema | None
    """Columns of a Parquet output."""

    @property
    def pictures(self) -> bool:
        """Whether the rows are pictures, and not texts."""
        return self.sources[0].pictures

    def read(self, *, whole: bool = False) -> Iterator[Row]:
        """Yield every row of every file, in order."""
        for source in self.sources:
            yield from source.rows(whole=whole)

    def check_unchanged(self) -> None:
        """Check that no file has changed since the survey."""
        for source, state in zip(self.sources, self.states, strict=True):
            if source.state() != state:
                raise InputFailure(
                    f"{source.name} was changed while it was read: run again with --restart"
                )


def find_sources(options: FileOptions, spool: Path) -> list[Source]:
    """Return the sources that the inputs name, in order; files of globs and folders by name."""
    if PARQUET in {options.out.suffix, *(Path(name).suffix for name in options.inputs)}:
        require("Parquet", "pyarrow")
    columnar = options.out.suffix in COLUMNAR
    reserved = reserved_names(options.encoding.kind) if columnar else frozenset[str]()
    column = options.image_column or options.column
    sources: list[Source] = []
    for name in options.inputs:
        if name == STDIN:
            sources.append(TextLines(spool, "standard input", column, reserved))
            continue
        for is_picture, group in itertools.groupby(_matching(name), is_of_pictures):
            if is_picture:
                sources.append(PictureFiles(name, [*group], options.image_column, reserved))
                continue
            for path in group:
                source = _kind(path)(path, str(path), column, reserved)
                source.pictures = options.image_column is not None
                sources.append(source)
    if len({source.pictures for source in sources}) > 1:
        raise UsageError("pictures and texts have models of their own: encode them apart")
    suffixes = {source.path.suffix for source in sources}
    if options.out.suffix == PARQUET in suffixes and len(suffixes) > 1:
        raise UsageError("Parquet and other files have no columns in common: encode them apart")
    if options.inputs.count(STDIN) > 1:
        raise UsageError("standard input can be read once")
    return sources


def survey(options: FileOptions, sources: Sequence[Source]) -> Survey:
    """Read all inputs once, to validate them before anything is computed."""
    schema: Schema | None = None
    if options.out.suffix == PARQUET:
        from service.files.parquet import Schema

        schema = Schema()
    rows, identity, states = 0, [], []
    for source in sources:
        states.append(source.state())
        identity.append({"name": source.name, "sha256": source.sha256()})
        for batch in batches(source.rows()):
            rows += len(batch)
            _check(batch, stop=options.on_error == "stop")
            if schema:
                schema.add(source, [row for row in batch if not row.problem])
        if source.pictures:
            identity[-1]["pictures"] = state_of_pictures(source)
    if not rows:
        raise InputFailure("there is nothing to encode: the input has no row")
    if schema:
        schema.try_columns(sources)
    if options.out.suffix == ".jsonl":
        for source in sources:
            source.check_json()
    return Survey(sources, rows, identity, states, schema)


def _check(rows: Sequence[Row], *, stop: bool) -> None:
    for row in rows:
        if stop and row.problem:
            raise bad_row(row.where, row.problem)


def bad_row(where: str, problem: str) -> InputFailure:
    """Return the error that stops a run at an invalid row."""
    return InputFailure(f"{where}: {problem} (--on-error skip leaves such rows out)")


def _matching(name: str) -> list[Path]:
    if glob.has_magic(name) and not Path(name).exists():
        anchor = Path(name).anchor
        paths = sorted(Path(anchor or ".").glob(name.removeprefix(anchor)))
        if not paths:
            raise UsageError(f"no file matches {name}")
        return paths
    if not Path(name).exists():
        raise UsageError(f"there is no file {name}")
    return [Path(name)]


def _kind(path: Path) -> type[Source]:
    """Return the class of sources for a file's format."""
    if path.suffix in _LINES:
        return _LINES[path.suffix]
    if path.suffix == PARQUET:
        from service.files.parquet import ParquetRows

        return ParquetRows
    known = ", ".join((*_LINES, PARQUET))
    raise UsageError(f"{path}: its ending must be one of {known}, or a picture's")
