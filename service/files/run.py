"""Run over files: read the inputs, encode them window by window, and write the output.

The inputs are read three times: to report invalid rows before anything is computed, for the texts,
and for the columns of the output. Only a few windows are in memory at a time.
"""

from __future__ import annotations

import errno
import itertools
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, TypeAlias

from tqdm import tqdm

from model.artifact.manifest import Artifact
from service.artifacts.opening import open_artifact
from service.engines.contract import Engine
from service.files.inputs import STDIN, Survey, bad_row, find_sources, survey
from service.files.local import LocalEncoder
from service.files.options import (
    FIELDS,
    FINGERPRINT,
    FileOptions,
    Outcome,
    Pending,
    Refused,
    TextArrays,
    UsageError,
    joined,
)
from service.files.parts import (
    Skipped,
    create,
    importance_table,
    read_parts,
    write_jsonl,
    write_npy,
    write_npz,
    write_part,
    write_safetensors,
)
from service.files.rows import InputFailure, PictureFiles, Row
from service.files.work import WorkFolder
from service.settings import Settings
from service.system.distribution import require

if TYPE_CHECKING:
    from service.files.remote import RemoteEncoder

ROW_CHARACTERS = 16
"""Characters that a row counts in addition to its text."""


def windows(
    rows: Iterable[Row], characters: int, done: Mapping[int, int]
) -> Iterator[tuple[int, list[Row]]]:
    """Yield the start and rows of windows that are not done; `done` has starts and ends.

    They are consecutive rows of all inputs, by the rows alone: a resumed run has the same windows.
    A row of more than `characters` is a window of its own.
    """
    window, size, start, resume = list[Row](), 0, 0, 0
    for position, row in enumerate(rows):
        own = ROW_CHARACTERS + len(row.text or "")
        if window and size + own > characters:
            yield start, window
            window, size = [], 0
        if not window:
            start, resume = position, done.get(position, resume)
        if position >= resume:
            window.append(row)
            size += own
    if window:
        yield start, window


LINE_SECONDS = 10.0


class Progress:
    """Progress in rows, with their rate and the remaining time, on standard error.

    It is a bar on a terminal, else a line every `LINE_SECONDS`.
    """

    def __init__(
        self,
        total: int,
        done: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        unit: str = "texts",
    ) -> None:
        """Start the display after `done` rows of an earlier run; `unit` is in the plural."""
        self._unit = unit
        self._total, self._done, self._begun = total, done, done
        self._clock = clock
        self._started = self._reported = clock()
        options = {"unit": f" {unit}", "file": sys.stderr, "disable": not sys.stderr.isatty()}
        self._bar = tqdm(total=total, initial=done, dynamic_ncols=True, **options)

    def close(self) -> None:
        """Close the bar, which stays on the terminal."""
        self._bar.close()

    def advance(self, rows: int) -> None:
        """Add completed rows."""
        self._done += rows
        self._bar.update(rows)
        if self._bar.disable and self._clock() - self._reported >= LINE_SECONDS:
            self._reported = self._clock()
            rate = (self._done - self._begun) / max(self._reported - self._started, 1e-9)
            left = tqdm.format_interval((self._total - self._done) / max(rate, 1e-9))
            self.say(
                f"{self._done:,} of {self._total:,} {self._unit}, {rate:,.0f} {self._unit}/s, "
                f"{left} left"
            )

    def say(self, line: str) -> None:
        """Print a message, above the bar if there is one."""
        tqdm.write(f"headscope: {line}", file=sys.stderr)


DONE, SKIPPED = 0, 3
"""Exit codes: done, and done except for skipped rows."""
AHEAD = 1
"""Number of windows that wait while one is computed, so that the engine never idles."""
Say = Callable[[str], None]
Encoder: TypeAlias = "LocalEncoder | RemoteEncoder"


def run(options: FileOptions, settings: Settings, say: Say, engine: Engine | None = None) -> int:
    """Encode the inputs into the output, resuming an unfinished run; return `DONE` or `SKIPPED`.

    `say` is called with a line at each step before the first text, and once if a service does not
    answer. A given engine is left open; without one, the settings' engine is started.

    Raises:
        UsageError: the options, the inputs and the unfinished run do not fit together.
        ModelError, ServiceError: the model cannot be loaded, or the engine failed.
        ValueError, OSError: an input cannot be read, or the output cannot be written.

    """
    if options.url:
        require("--url", "headscope")
    work = WorkFolder(options.out)
    sources = find_sources(options, work.spool)
    if not options.out.parent.is_dir():
        raise UsageError(f"--out {options.out}: there is no folder {options.out.parent}")
    if options.out.resolve() in {source.path.resolve() for source in sources}:
        raise UsageError(f"{options.out} is an input too")
    with _disk_full(work), work.held(restart=options.restart):
        try:
            if STDIN in options.inputs:
                with create(work.spool) as spool:
                    shutil.copyfileobj(sys.stdin.buffer, spool)
            for source in sources:
                if isinstance(source, PictureFiles) and source.left_out:
                    say(f"{source.name}: {source.left_out} files are hidden or no pictures by name")
            surveyed = survey(options, sources)
            pictures = surveyed.pictures
            with closing(_encoder(options, pictures, settings, say, engine)) as encoder:
                determined = {**options.identity, **encoder.identity}
                window = encoder.window_characters
                work.begin({"input": surveyed.identity, **determined, "window": window})
                _encode(options, surveyed, encoder, work)
                fingerprint = encoder.identity["fingerprint"]
            metadata = {FINGERPRINT: str(fingerprint)} if fingerprint else {}
            return _write_output(options, surveyed, work, metadata, say)
        except KeyboardInterrupt:
            say(f"stopped; the same command resumes {work.folder}")
            raise


def _encoder(
    options: FileOptions, pictures: bool, settings: Settings, say: Say, engine: Engine | None
) -> Encoder:
    if options.url:
        from service.files.remote import RemoteEncoder

        return RemoteEncoder(options, say, pictures=pictures)
    artifact = _tower(open_artifact(settings, say), pictures)
    return LocalEncoder(artifact, settings, options.encoding, engine)


def _tower(artifact: Artifact, pictures: bool) -> Artifact:
    """Return the artifact that reads pictures, or texts: the model's own, or its vision tower."""
    if pictures and artifact.vision:
        return artifact.vision
    name = artifact.manifest.model
    if pictures and not artifact.manifest.images:
        raise UsageError(f"the inputs are pictures, and {name} reads texts: choose another model")
    if artifact.manifest.images and not pictures:
        raise UsageError(
            f"{name} reads pictures: name files or folders of pictures, or pass --image-column"
        )
    return artifact


def _encode(options: FileOptions, surveyed: Survey, encoder: Encoder, work: WorkFolder) -> None:
    """Compute the windows that are not done."""
    parts = list(read_parts(work.folder))
    done = {part.start: part.end for part in parts}
    unit = "pictures" if surveyed.pictures else "texts"
    before = sum(part.end - part.start for part in parts)
    with closing(Progress(surveyed.rows, before, unit=unit)) as progress:
        for part in parts:
            if part.skips:
                _report(options, part.skipped(), progress.say)
        started: deque[tuple[int, list[Row], Pending]] = deque()
        for start, window in windows(surveyed.read(), encoder.window_characters, done):
            texts = [row.source.given(row) for row in window if row.text is not None]
            started.append((start, window, encoder.begin(texts)))
            if len(started) > AHEAD:
                _finish(options, *started.popleft(), work, progress)
        while started:
            _finish(options, *started.popleft(), work, progress)
        for sentence in encoder.warnings.sentences():
            progress.say(sentence)


def _finish(
    options: FileOptions,
    start: int,
    window: list[Row],
    batches: Pending,
    work: WorkFolder,
    progress: Progress,
) -> None:
    """Wait for a window, and write its part."""
    outcomes: dict[int, Outcome] = {}
    for batch in batches:
        computed = batch.result()
        outcomes |= computed
        progress.advance(len(computed))
    skipped, rows, arrays = list[Skipped](), list[int](), list[TextArrays]()
    texts = itertools.count()
    for position, row in enumerate(window, start):
        outcome = Refused(row.problem) if row.text is None else outcomes[next(texts)]
        if isinstance(outcome, Refused):
            skipped.append(Skipped(row.where, outcome.problem))
        else:
            rows.append(position)
            arrays.append(outcome)
    _report(options, skipped, progress.say)
    progress.advance(len(window) - len(outcomes))
    content = joined(options.encoding.kind, rows, arrays) if arrays else {}
    write_part(work.folder, start, start + len(window), content, skipped)


def _report(options: FileOptions, skipped: list[Skipped], say: Say) -> None:
    """Report skipped rows."""
    for row in skipped:
        if options.on_error == "stop":
            raise bad_row(row.where, row.problem)
        say(f"skipped {row.where}: {row.problem}")


def _write_output(
    options: FileOptions,
    surveyed: Survey,
    work: WorkFolder,
    metadata: Mapping[str, str],
    say: Say,
) -> int:
    """Write the output from its parts, and return the exit code."""
    kind = options.encoding.kind
    parts = list(read_parts(work.folder))
    if [0, *(part.end for part in parts)] != [*(part.start for part in parts), surveyed.rows]:
        raise InputFailure(f"{work.folder} lacks a part: start the same command again")
    if not any(part.specs for part in parts):
        raise InputFailure("every row was skipped: there is nothing to write")
    with create(work.draft) as file:
        match options.out.suffix:
            case ".npy":
                write_npy(file, parts, FIELDS[kind][0].name)
            case ".npz":
                write_npz(file, parts)
            case ".safetensors":
                write_safetensors(file, parts, metadata)
            case ".jsonl":
                write_jsonl(file, kind, parts, surveyed.read(whole=True))
            case _:
                from service.files.parquet import Schema, write_parquet

                schema, rows = surveyed.schema or Schema(), surveyed.read(whole=True)
                write_parquet(file, kind, schema, parts, rows, metadata)
    if kind == "importance":
        say(importance_table(parts))
    surveyed.check_unchanged()
    work.finish()
    return SKIPPED if any(part.skips for part in parts) else DONE


@contextmanager
def _disk_full(work: WorkFolder) -> Iterator[None]:
    """Raise a full disk as an OSError with a one-line message."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            f"cannot write to {work.folder}: {error.strerror}; the same command resumes the run "
            "once there is room"
        ) from None
