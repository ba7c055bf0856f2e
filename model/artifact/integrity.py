"""Hashes of files and of the exporter; checks of files; errors of reading and writing them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from pathlib import Path

from model.artifact.mapped import read_header
from model.errors import ArtifactError

_LOCATION = b"location"
_READ_BYTES = 2**23
"""Bytes to hash at a time. After each piece a thread waits for Python's lock, up to 5 ms while
another thread computes."""


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        piece = memoryview(bytearray(min(_READ_BYTES, path.stat().st_size + 1)))
        while size := file.readinto(piece):
            digest.update(piece[:size])
    return digest.hexdigest()


def sha256_once(path: Path) -> str:
    """Return `sha256_of` a file, which is read once while its size and times are the same.

    For a checkpoint, which a start hashes for several reasons; an artifact is always read.
    """
    now = path.stat()
    return _sha256_of_version(path, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)


@functools.lru_cache(maxsize=64)
def _sha256_of_version(path: Path, *version: int) -> str:
    del version
    return sha256_of(path)


def check_file(path: Path, sha256: str, size: int) -> None:
    """Raise an error if a file is missing or its content has changed."""
    if path.is_symlink():
        raise ArtifactError(f"{path} is a symbolic link; an artifact holds plain files only")
    if not path.is_file():
        raise ArtifactError(f"{path} is missing; export the model again")
    actual = path.stat().st_size
    if actual != size:
        raise ArtifactError(f"{path} has {actual} bytes instead of {size}; export the model again")
    if sha256_of(path) != sha256:
        raise ArtifactError(f"{path} is damaged (wrong SHA-256); export the model again")


def check_locations(graph: Path, names: Sequence[str]) -> None:
    """Raise an error if a graph has tensors in files other than the named ones.

    https://github.com/onnx/onnx/blob/main/onnx/onnx.proto: `external_data` is field 13 of a tensor,
    with entries of a key (1) and a value (2). The word `location` in any other position, or in
    another encoding than the exporter's, is an error as well. Both runtimes themselves refuse files
    outside the folder, in any encoding.
    """
    content = graph.read_bytes()
    ours = (_field(13, _field(1, _LOCATION) + _field(2, name.encode())) for name in names)
    if content.count(_LOCATION) != sum(map(content.count, ours)):
        raise _elsewhere(graph, names)


def check_references(path: Path, names: Sequence[str]) -> None:
    """Raise an error if a safetensors file shares tensors of files other than the named ones."""
    with reading(path):
        files = {reference.file for reference in read_header(path).shared.values()}
    if not files <= {*names}:
        raise _elsewhere(path, names)


def _elsewhere(path: Path, names: Sequence[str]) -> ArtifactError:
    allowed = " or ".join(names) or "its own"
    return ArtifactError(
        f"{path} has tensors in another file than {allowed}; export the model again"
    )


def _field(number: int, value: bytes) -> bytes:
    """Encode a field of protobuf's wire type 2, with a value of less than 128 bytes."""
    return bytes((number << 3 | 2, len(value))) + value


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


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any exception of a library that reads an artifact's file into an `ArtifactError`.

    Raises:
        ArtifactError: the library failed.

    """
    try:
        yield
    except Exception as error:  # the libraries' own exceptions share no base class
        raise ArtifactError(
            f"{path} cannot be read ({type(error).__name__}); export the model again"
        ) from None


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn any exception of a library that writes an artifact's file into an `ArtifactError`."""
    try:
        yield
    except Exception as error:  # the libraries' own exceptions share no base class
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ArtifactError(f"{path} cannot be written: {reason}") from None
