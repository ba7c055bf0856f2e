"""Cache key of an exported artifact, and hard links between artifacts. Without torch."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from model.artifact.integrity import sha256_of, sha256_once
from model.artifact.late_files import METADATA
from model.artifact.manifest import MANIFEST, Artifact
from model.artifact.modules import is_static, listed_modules, transformer_folder
from model.artifact.weight_files import pickled_files
from model.config.precision import WeightBits
from model.errors import SourceError
from model.families.jina_tasks import PEFT_CONFIG

LEAST_BYTES = 2**20
"""Minimum size of a file that is searched for in other artifacts."""


def share_files(artifact: Artifact, folders: Iterable[Path]) -> None:
    """Replace large files of an artifact by hard links to identical files of other artifacts.

    A file that differs from its manifest's record or cannot be linked is left alone. Others may
    read the artifact at the same time, as each file is replaced atomically.
    """
    wanted = {
        record.sha256: artifact.path(name)
        for name, record in artifact.manifest.files.items()
        if record.bytes >= LEAST_BYTES
    }
    for folder in folders:
        for source, sha256 in _recorded(folder):
            target = wanted.get(sha256)
            if target is not None and _link(source, target, sha256):
                del wanted[sha256]


def _recorded(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of an artifact of any format version, with the SHA-256s in its manifest."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        for name, record in json.loads((folder / MANIFEST).read_bytes())["files"].items():
            yield folder / Path(name).name, record["sha256"]


def _link(source: Path, target: Path, sha256: str) -> bool:
    """Replace the target by a hard link to the source; return whether that was possible."""
    scratch = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if source.is_symlink() or source.samefile(target) or sha256_of(source) != sha256:
            return False
        os.link(source, scratch)
    except OSError:
        return False
    try:
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)
    return True


STATIC_LIBRARIES = ("tokenizers", "transformers")
LIBRARIES = ("torch", "onnx", "onnxscript", *STATIC_LIBRARIES)


def exporter_version(libraries: Sequence[str] = LIBRARIES) -> str:
    """Return the SHA-256 of `model`'s source and of the versions of the exporting libraries."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.txt")]):
        digest.update(
            path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
        )
    for name in libraries:
        version = importlib.metadata.version(name).partition("+")[0]
        digest.update(f"{name}={version}\0".encode())
    return digest.hexdigest()


def cache_key(
    checkpoint: Path, model: str, precision: str, weight_bits: WeightBits | None = None
) -> str:
    """Return a short SHA-256 of the checkpoint's files, its name, the precision and the exporter.

    Raises:
        SourceError: the folder holds no checkpoint.
        ConfigError: its `modules.json` cannot be read.
        CheckpointError: an index of its weights is damaged.

    """
    static = is_static(checkpoint)
    version = exporter_version(STATIC_LIBRARIES if static else LIBRARIES)
    export = f"{model}\0{precision}\0{weight_bits}\0{version}\0"
    digest = hashlib.sha256(export.encode())
    vocabularies = ("vocab.txt", "merges.txt", "*.spm", "*.model")
    patterns = ("*.safetensors", "*.json", "*.jinja", *vocabularies, METADATA)
    folders = {checkpoint, *(module.folder for module in listed_modules(checkpoint) or ())}
    folders |= {path.parent for path in transformer_folder(checkpoint).glob(f"*/{PEFT_CONFIG}")}
    files = sorted(
        {path for folder in folders for pattern in patterns for path in folder.glob(pattern)}
    )
    files = sorted({*files, *pickled_files(checkpoint)})
    if not static and (transformer_folder(checkpoint) / "config.json") not in files:
        raise SourceError(f"{checkpoint} holds no checkpoint: there is no config.json")
    for path in files:
        name = path.relative_to(checkpoint).as_posix()
        digest.update(f"{name}\0{sha256_once(path)}\0".encode())
    return digest.hexdigest()[:32]
