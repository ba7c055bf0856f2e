"""Context managers that turn any exception of a file library into an `ArtifactError`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from model.errors import ArtifactError


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
