"""Folders that combine the files of a checkpoint with others, in the format of a checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from model.sources.home import EXPORTS, make_cache


def overlaid(checkpoint: Path, written: Mapping[str, str], folders: Path) -> Path:
    """Return a folder of links to a checkpoint's files, in which some files are replaced or added.

    Args:
        checkpoint: a Hugging Face folder.
        written: content of each replaced or added file by its path in the folder.
        folders: parent of the new folder, which is reused if it exists.

    """
    names = sorted(path.name for path in checkpoint.iterdir())
    decides = json.dumps([str(checkpoint.resolve()), names, dict(written)])
    folder = folders / hashlib.sha256(decides.encode()).hexdigest()[:32]
    if folder.exists():
        return folder
    make_cache(folders, EXPORTS)
    scratch = Path(tempfile.mkdtemp(dir=folders))
    try:
        _fill(scratch, checkpoint, written)
        with contextlib.suppress(OSError):  # another process created the same folder first
            scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _fill(folder: Path, source: Path, written: Mapping[str, str]) -> None:
    """Write files into a folder, and link to the other files of its source, if that exists."""
    tops = {name.partition("/")[0] for name in written}
    for path in source.iterdir() if source.is_dir() else ():
        if path.name not in tops:
            (folder / path.name).symlink_to(path.resolve())
    for top in tops:
        if top in written:
            (folder / top).write_text(written[top], encoding="utf-8")
            continue
        (folder / top).mkdir()
        inner = {
            name.partition("/")[2]: content
            for name, content in written.items()
            if name.startswith(f"{top}/")
        }
        _fill(folder / top, source / top, inner)
