"""Checks of an artifact's files: that each is the one that was exported, and names no other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from model.artifact.mapped import read_header
from model.errors import ArtifactError

_LOCATION = b"location"


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path, sha256: str, size: int) -> None:
    """Refuse a file that is not there, or has other content.

    Args:
        path: of the file.
        sha256: of its content, in hex.
        size: in bytes.

    Raises:
        ArtifactError: it is missing, a link, or not the one that was exported.

    """
    if path.is_symlink():
        raise ArtifactError(f"{path} is a symbolic link; an artifact holds plain files only")
    if not path.is_file():
        raise ArtifactError(f"{path} is missing; export the model again")
    found = path.stat().st_size
    if found != size:
        raise ArtifactError(f"{path} has {found} bytes instead of {size}; export the model again")
    if sha256_of(path) != sha256:
        raise ArtifactError(f"{path} is damaged (wrong SHA-256); export the model again")


def check_locations(graph: Path, names: Sequence[str]) -> None:
    """Refuse a graph whose tensors are in other files than these.

    https://github.com/onnx/onnx/blob/main/onnx/onnx.proto: `external_data` is field 13 of a tensor,
    with entries of a key (1) and a value (2). The word in any other place, or encoded otherwise
    than the exporter does, is refused as well. What is outside of the folder both runtimes refuse
    themselves, however it is encoded.

    Args:
        graph: an ONNX file.
        names: of files beside it; with none, its tensors are in the graph itself.

    Raises:
        ArtifactError: a tensor is, or may be, in another file.

    """
    content = graph.read_bytes()
    ours = (_field(13, _field(1, _LOCATION) + _field(2, name.encode())) for name in names)
    if content.count(_LOCATION) != sum(map(content.count, ours)):
        allowed = " or ".join(names) or "its own"
        raise ArtifactError(
            f"{graph} has tensors in another file than {allowed}; export the model again"
        )


def check_references(path: Path, names: Sequence[str]) -> None:
    """Refuse a safetensors file that shares tensors of other files than these.

    Args:
        path: a file whose metadata may name tensors of files beside it.
        names: of those files.

    Raises:
        ArtifactError: it names another file, or cannot be read.

    """
    try:
        files = {reference.file for reference in read_header(path).shared.values()}
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise ArtifactError(
            f"{path} cannot be read ({type(error).__name__}); export the model again"
        ) from None
    if not files <= {*names}:
        raise ArtifactError(
            f"{path} has tensors in another file than {' or '.join(names) or 'its own'}; export "
            "the model again"
        )


def _field(number: int, value: bytes) -> bytes:
    """A field of protobuf's wire type 2, with a value of less than 128 bytes."""
    return bytes((number << 3 | 2, len(value))) + value
