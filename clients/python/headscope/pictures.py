"""Pictures as inputs of calls: files by path, bytes of files, and images of Pillow."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, TypeGuard


class PillowImage(Protocol):
    """Image of Pillow, which this package does not require."""

    @property
    def mode(self) -> str:
        """Kind of its pixels, such as `RGB`."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""

    def save(self, fp: Any, format: str | None = None) -> None:  # noqa: A002 - Pillow's name
        """Write the image to a file."""


PictureLike = os.PathLike[str] | bytes | PillowImage
"""Picture of a caller; a string is a text, never a path."""


@dataclass(frozen=True)
class Picture:
    """File of a picture."""

    data: bytes
    name: str
    """Name in place of a text: the file's name, or what the caller gave."""

    @property
    def characters(self) -> int:
        """Number of characters of the file in base64."""
        return 4 * -(-len(self.data) // 3)

    @property
    def element(self) -> Mapping[str, str]:
        """Element of a request's inputs."""
        return {"image": base64.b64encode(self.data).decode("ascii")}


def is_picture(value: object) -> TypeGuard[PictureLike]:
    """Return whether a value of a caller is a picture."""
    return isinstance(value, os.PathLike | bytes | bytearray | memoryview) or (
        hasattr(value, "mode") and hasattr(value, "save")
    )


def read_picture(value: PictureLike) -> Picture:
    """Return the file of a picture; an image of Pillow becomes a PNG file, without a loss.

    Raises:
        OSError: a file cannot be read.
        TypeError: an image has a mode that PNG lacks.

    """
    if isinstance(value, os.PathLike):
        path = Path(value)
        return Picture(path.read_bytes(), path.name)
    if isinstance(value, bytes | bytearray | memoryview):
        return Picture(bytes(value), f"a picture of {len(value)} bytes")
    file = BytesIO()
    try:
        value.save(file, "PNG")
    except OSError:
        raise TypeError(
            f"an image of mode {value.mode} is no PNG: pass image.convert('RGB')"
        ) from None
    width, height = value.size
    return Picture(file.getvalue(), f"a picture of {width} × {height} pixels")
