"""A run over files: read, encode window by window, and put the output together.

The inputs are read three times: whole at first, so that what is wrong with them is known before
anything is computed; then for their texts; then for the columns that go to the output. In memory
there are never more than a few windows.
"""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from service.artifacts.opening import open_artifact
from service.engines.contract import Engine
from service.files.arrays import write_npz, write_safetensors, write_vectors
from service.files.columns import write_jsonl
from service.files.connection import Connection
from service.files.encoder import Encoder, Outcome, Pending, Refused
from service.files.fields import FIELDS, ROWS, joined
from service.files.importance import importance_table
from service.files.inputs import STDIN, Survey, bad_row, find_sources, spool_stdin, survey
from service.files.local import LocalEncoder
from service.files.options import FileOptions, UsageError
from service.files.parts import Skipped, create, read_parts, write_part
from service.files.progress import Progress
from service.files.remote import RemoteEncoder
from service.files.rows import InputFailure
from service.files.windows import Window, windows
from service.files.work import WorkFolder
from service.settings import Settings

DONE, SKIPPED = 0, 3
"""Exit codes: done, and done but for rows that were skipped."""
AHEAD = 1
"""Windows that wait while one is computed, so that the engine always has a batch to take."""
Say = Callable[[str], None]


class Begun(NamedTuple):
    """A window that is being computed."""

    window: Window
    batches: Pending


def run(options: FileOptions, settings: Settings, say: Say, engine: Engine | None = None) -> int:
    """Encode the inputs into the output; what was done of an unfinished run is not done again.

    Args:
        options: inputs, output, and what is wanted.
        settings: the model and its engine, where no service is asked.
        say: told of the steps before the first text.
        engine: computes, and stays open; the one that the settings name when None.

    Returns:
        The exit code: 0 done, 3 done but for rows that were skipped.

    Raises:
        UsageError: options, inputs and what is unfinished do not fit together.
        ModelError, ServiceError: the model cannot be loaded, or the engine failed.
        ValueError, OSError: an input cannot be read, or the output not be written.

    """
    work = WorkFolder(options.out)
    sources = find_sources(options, work.spool)
    if not options.out.parent.is_dir():
        raise UsageError(f"--out {options.out}: there is no folder {options.out.parent}")
    if options.out.resolve() in {source.path.resolve() for source in sources}:
        raise UsageError(f"{options.out} is an input too")
    with _told(work), work.held(restart=options.restart):
        try:
            if STDIN in options.inputs:
                spool_stdin(work.spool)
            found = survey(options, sources)
            with contextlib.closing(_encoder(options, settings, say, engine)) as encoder:
                work.begin(_job(options, found, encoder))
                _encode(options, found, encoder, work)
            return _put_together(options, found, work, say)
        except KeyboardInterrupt:
            say(f"stopped; the same command goes on with {work.folder}")
            raise


def _encoder(
    options: FileOptions, settings: Settings, say: Say, engine: Engine | None
) -> LocalEncoder | RemoteEncoder:
    if options.url:
        return RemoteEncoder(Connection(options.url, options.api_key), options.encoding, say)
    return LocalEncoder(open_artifact(settings, say), settings, options.encoding, engine)


def _job(options: FileOptions, found: Survey, encoder: Encoder) -> dict[str, object]:
    """All that the output follows from."""
    window = {"window": encoder.window_characters}
    return {"input": found.identity, **options.identity, **encoder.identity, **window}


def _encode(options: FileOptions, found: Survey, encoder: Encoder, work: WorkFolder) -> None:
    """Compute the windows that are not done."""
    parts = list(read_parts(work.folder))
    done = {part.start: part.end for part in parts}
    with Progress(found.rows, sum(part.end - part.start for part in parts)) as progress:
        for part in parts:
            if part.skips:
                _report(options, part.skipped(), progress.say)
        begun: deque[Begun] = deque()
        for window in windows(found.places(), encoder.window_characters, done):
            texts = [place.row.text for place in window.places if place.row.text is not None]
            begun.append(Begun(window, encoder.begin(texts)))
            if len(begun) > AHEAD:
                _finish(options, begun.popleft(), work, progress)
        while begun:
            _finish(options, begun.popleft(), work, progress)
        for sentence in encoder.notices.sentences():
            progress.say(sentence)


def _finish(options: FileOptions, begun: Begun, work: WorkFolder, progress: Progress) -> None:
    """Wait for a window, and keep what it has come to."""
    window = begun.window
    with_text = [place for place in window.places if place.row.text is not None]
    outcomes: list[Outcome] = [Refused("nothing was computed")] * len(with_text)
    for batch in begun.batches:
        for order, outcome in batch.result():
            outcomes[order] = outcome
            progress.advance(1)
    skipped = [
        Skipped(place.position, place.source.where(place.row.number), place.row.problem)
        for place in window.places
        if place.row.text is None
    ]
    rows, arrays = [], []
    for place, outcome in zip(with_text, outcomes, strict=True):
        if isinstance(outcome, Refused):
            where = place.source.where(place.row.number)
            skipped.append(Skipped(place.position, where, outcome.problem))
        else:
            rows.append(place.position)
            arrays.append(outcome)
    skipped.sort()
    _report(options, skipped, progress.say)
    progress.advance(len(window.places) - len(with_text))
    content = joined(options.encoding.kind, arrays) if arrays else {}
    if arrays:
        content[ROWS] = np.array(rows, np.int64)
    write_part(work.folder, window.start, window.end, content, skipped)


def _report(options: FileOptions, skipped: list[Skipped], say: Say) -> None:
    """Tell of rows that are left out.

    Raises:
        InputFailure: the run is to stop at such a row.

    """
    for row in skipped:
        if options.on_error == "stop":
            raise bad_row(row.where, row.problem)
        say(f"skipped {row.where}: {row.problem}")


def _put_together(options: FileOptions, found: Survey, work: WorkFolder, say: Say) -> int:
    """Write the output from its parts, and return the exit code."""
    kind = options.encoding.kind
    parts = list(read_parts(work.folder))
    if [0, *(part.end for part in parts)] != [*(part.start for part in parts), found.rows]:
        raise InputFailure(f"{work.folder} lacks a part: start the same command again")
    if not any(part.specs for part in parts):
        raise InputFailure("every row was skipped: there is nothing to write")
    with create(work.draft) as file:
        match options.out.suffix:
            case ".npy":
                write_vectors(file, parts, FIELDS[kind][0].name)
            case ".npz":
                write_npz(file, parts)
            case ".safetensors":
                write_safetensors(file, parts)
            case ".jsonl":
                write_jsonl(file, kind, parts, found.places(whole=True))
            case _:
                from service.files.parquet import Schema
                from service.files.parquet_output import write_parquet

                write_parquet(file, kind, found.schema or Schema(), parts, found.places(whole=True))
    if kind == "importance":
        say(importance_table(parts))
    found.check_unchanged()
    work.finish()
    return SKIPPED if any(part.skips for part in parts) else DONE


@contextlib.contextmanager
def _told(work: WorkFolder) -> Iterator[None]:
    """A full disk in one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            f"{work.folder} cannot be written: {error.strerror}; the same command goes on once "
            "there is room"
        ) from None
