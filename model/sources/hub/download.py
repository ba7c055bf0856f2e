"""Download of a checkpoint's files from a hub into Hugging Face's cache, by `huggingface_hub`.

The library uses the token of HF_TOKEN or of Hugging Face's token file, resumes broken downloads,
and shows a progress bar per file on a terminal.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from huggingface_hub import HfApi, errors, get_token, hf_hub_download, snapshot_download
from huggingface_hub.utils.logging import get_logger
from huggingface_hub.utils.tqdm import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)

from model.errors import ModelError, SourceError, UnreachableError
from model.families.jina_v3 import PEFT_CONFIG
from model.sources.files import (
    deciding,
    descriptions,
    lacking,
    listed_modules,
    task_places,
    weights,
)
from model.sources.hub.repository import Hub, Repository
from model.sources.recognition import check_described

_EVERY_SECONDS = 10.0
_ATTEMPTS = (
    (re.compile(r"Waiting ([\d.]+)s"), "the hub asks to wait {} s"),
    (re.compile(r"Retrying in ([\d.]+)s"), "the hub fails; trying again in {} s"),
    (re.compile(r"Trying to (resume)"), "the connection broke; resuming"),
)
"""Warnings of `huggingface_hub` about retries that may take minutes → lines to report."""


class _Attempts(logging.Handler):
    """Log handler that only reports retries: other warnings are advice, failures raise errors."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        for pattern, line in _ATTEMPTS:
            if match := pattern.search(text):
                self._progress(line.format(match[1]))


@contextlib.contextmanager
def report_retries(progress: Callable[[str], None]) -> Iterator[None]:
    """Report retries, and suppress all other messages of `huggingface_hub`."""
    logger = get_logger("huggingface_hub")  # the logger holds the handler of the library
    handlers, propagate = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [_Attempts(progress)], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate


@contextlib.contextmanager
def report_download(
    blobs: Path, name: str, size: int | None, progress: Callable[[str], None]
) -> Iterator[None]:
    """Report a file's download at its start and, without a terminal, every ten seconds.

    Unfinished files grow in the folder `blobs` of the repository in the cache.
    """
    total = "" if size is None else f" of {_megabytes(size)}"
    progress(f"fetching {name}" if size is None else f"fetching {name}, {_megabytes(size)}")
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_EVERY_SECONDS):
            progress(f"{name}: {_megabytes(_unfinished(blobs))}{total}")

    thread = threading.Thread(target=watch, daemon=True)
    if not sys.stderr.isatty():
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.is_alive():
            thread.join()


def _unfinished(blobs: Path) -> int:
    """Return the size in bytes of the largest unfinished file."""
    sizes = [0]
    for path in blobs.glob("*.incomplete"):
        with contextlib.suppress(FileNotFoundError):  # it was finished in the meantime
            sizes.append(path.stat().st_size)
    return max(sizes)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


_SECONDS = 10.0
"""Timeout of the hub's answer about a repository."""


def download(hub: Hub, repository: Repository, progress: Callable[[str], None]) -> Path:
    """Download the missing files of a repository's checkpoint; return its folder in the cache.

    Raises:
        UnreachableError: the hub cannot be reached, or fails.
        SourceError: there is no such repository or revision, or it needs a token.
        ConfigError, CheckpointError: the checkpoint is not supported; its weights were not
            downloaded.

    """
    try:
        with report_retries(progress):
            return _download(hub, repository, progress)
    except ModelError:
        raise
    except Exception as error:  # the client does not catch errors of its HTTP and JSON libraries
        raise _refusal(error, hub, repository) from None


def _download(hub: Hub, repository: Repository, progress: Callable[[str], None]) -> Path:
    info = HfApi(endpoint=hub.endpoint).model_info(
        repository.name, revision=repository.revision, timeout=_SECONDS, files_metadata=True
    )
    sizes = {item.rfilename: item.size for item in info.siblings or []}
    folder = _fetch_small(hub, repository, descriptions(sizes))
    commit = Repository(repository.name, folder.name)
    for item in listed_modules(folder) or ():
        if item.place:
            _fetch_small(hub, commit, descriptions(sizes, item.place))
    of_tasks = {at + PEFT_CONFIG for at in task_places(folder)} & sizes.keys()
    _fetch_small(hub, commit, sorted(of_tasks))
    check_described(folder, sizes.keys(), str(repository), pickles=hub.pickles)
    for name in deciding(folder, pickles=hub.pickles):
        if name not in sizes:
            _note_absent(hub, commit, name)
    for name in weights(sizes, folder, pickles=hub.pickles):
        if not (folder / name).is_file():
            with report_download(folder.parents[1] / "blobs", name, sizes[name], progress):
                _fetch_large(hub, commit, name)
    if absent := lacking(folder, pickles=hub.pickles):
        raise SourceError(f"{repository} of {hub.endpoint} lacks {', '.join(absent)}")
    return folder


def _fetch_small(hub: Hub, repository: Repository, names: Iterable[str]) -> Path:
    """Download files in parallel without progress bars; return the snapshot's folder."""
    with _no_bars():
        folder = snapshot_download(
            repository.name,
            revision=repository.revision,
            cache_dir=hub.cache,
            endpoint=hub.endpoint,
            allow_patterns=[glob.escape(name) for name in names],
        )
    return Path(folder)


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    shown = not are_progress_bars_disabled()
    if shown:
        disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            enable_progress_bars()


def _fetch_large(hub: Hub, commit: Repository, name: str) -> None:
    hf_hub_download(
        commit.name, name, revision=commit.revision, cache_dir=hub.cache, endpoint=hub.endpoint
    )


def _note_absent(hub: Hub, commit: Repository, name: str) -> None:
    """Record in the cache that a commit lacks a file, so that the next start needs no hub."""
    with contextlib.suppress(errors.EntryNotFoundError):
        _fetch_large(hub, commit, name)


def _refusal(error: Exception, hub: Hub, repository: Repository) -> SourceError:
    """Return the error for a failure of `huggingface_hub`, without the token or a password."""
    causes = list(_causes(error))
    responses = (getattr(cause, "response", None) for cause in causes)
    statuses = (getattr(response, "status_code", None) for response in responses)
    status = next(filter(None, statuses), None)
    name, endpoint = repository.name, hub.endpoint
    kind: type[SourceError] = SourceError

    def caused_by(other: type[Exception]) -> bool:
        return any(isinstance(cause, other) for cause in causes)

    if caused_by(errors.GatedRepoError):
        message = (
            f"{name} is gated: accept its terms at {endpoint}/{name}, and set HF_TOKEN to a token "
            "of that account"
        )
    elif caused_by(errors.RevisionNotFoundError):
        message = f"{endpoint} has {name}, but no revision {repository.revision}"
    elif caused_by(errors.RepositoryNotFoundError):
        message = f"{endpoint} has no model {name}, or it is private: HF_TOKEN gives a token"
    elif status in (401, 403):
        message = f"{endpoint} refuses {name} ({status}): set HF_TOKEN to a token that may read it"
    else:
        kind = UnreachableError
        message = f"{name} cannot be fetched from {endpoint}: {_reason(causes, status)}"
    token = get_token()
    message = message.replace(token, "***") if token else message
    return kind(re.sub(r"(?<=://)[^/@\s]*@", "", message))


def _reason(causes: list[BaseException], status: int | None) -> str:
    if status == 429:
        return "too many requests (429); wait, or set HF_TOKEN, which gives a larger allowance"
    if status is not None:
        return f"it answers {status}"
    text = str(causes[-1]).strip() or type(causes[-1]).__name__
    return text.splitlines()[0]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, the first cause last."""
    while error is not None:
        yield error
        error = error.__cause__
