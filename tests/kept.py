"""Exports that a run of the tests keeps for the next one, in the user's cache.

An export is named by all that decides its bytes: the checkpoint's files, all source of `model`, the
libraries that export, and the libraries and the processor whose arithmetic its verification
measured. While none of it changes, an export is copied instead of made; tests of the exporter
itself make their own.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path

from filelock import FileLock

from model.artifact.manifest import load_artifact
from model.config.precision import Precision
from model.errors import ArtifactError
from model.runtimes.registry import weight_bits
from model.sources.files import cache_key

VARIABLE = "ONEDNN_MAX_CPU_ISA"
"""Variable that keeps OpenVINO from the better instructions (`tests.conftest.LESSER`)."""
RUNTIMES = ("onnxruntime", "openvino", "torch")
MOST_BYTES = 4 * 2**30
"""Maximum bytes of the cache; the least recently used exports are removed."""
IN_USE_SECONDS = 3600
"""Seconds for which a used export is not removed: another run may be about to copy it."""
FORGOTTEN_SECONDS = 3 * 24 * 3600
"""What nobody used for so long is of other code, or of a checkpoint that no two runs make alike."""


@functools.cache
def runtimes() -> list[str]:
    """Return the installed versions of all libraries that compute, whatever their builds."""
    return sorted(
        f"{one.name} {one.version}"
        for one in importlib.metadata.distributions()
        if one.name.startswith(RUNTIMES)
    )


def processor_name() -> str:
    """Return the processor's name from Linux, or else the name of its architecture."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


class Kept:
    """Folder of exports, each under its key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def key(self, checkpoint: Path, name: str, precision: Precision) -> str:
        """Of an export as the tests make it.

        Raises:
            ModelError: the folder holds no checkpoint.

        """
        exported = cache_key(checkpoint, name, precision, weight_bits(precision))
        made_by = Path(__file__).with_name("exports.py").read_bytes()
        machine = [processor_name(), os.environ.get(VARIABLE, "")]
        reported = "\0".join([exported, *runtimes(), *machine]).encode() + made_by
        return hashlib.sha256(reported).hexdigest()[:32]

    def copy(self, key: str, out: Path) -> bool:
        """Copy an export to a new folder; return whether the export exists and is whole."""
        kept = self._folder / key
        try:
            load_artifact(kept)
            os.utime(kept)
            shutil.copytree(kept, out)
        except (ArtifactError, OSError):
            shutil.rmtree(out, ignore_errors=True)
            return False
        return True

    def keep(self, key: str, made: Path) -> None:
        """Copy an export into the cache, and remove old ones to make room."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self._folder}.lock"):  # of all runs on this machine
            with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
                copied = shutil.copytree(made, Path(scratch, key))
                shutil.rmtree(
                    self._folder / key, ignore_errors=True
                )  # damaged, or being written by another run
                copied.rename(self._folder / key)
            self._make_room()

    def _make_room(self) -> None:
        room, now = MOST_BYTES, time.time()
        used = {folder: folder.stat().st_mtime for folder in self._folder.iterdir()}
        for folder in sorted(used, key=lambda one: -used[one]):
            room -= sum(file.stat().st_size for file in folder.iterdir())
            if now - used[folder] > (IN_USE_SECONDS if room < 0 else FORGOTTEN_SECONDS):
                shutil.rmtree(folder, ignore_errors=True)
