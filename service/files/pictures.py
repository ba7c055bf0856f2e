"""Pictures as rows: files, folders, and the files that a column of a table names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from service.files.options import Refused, UsageError
from service.files.rows import Row, Source

ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".jfif", ".webp", ".gif", ".bmp"})
"""Endings, in lower case, of the files that are taken from a folder or glob."""


class PictureFiles(Source):
    """Source of pictures, one in each file; the column has their paths."""

    unit = "picture"
    pictures = True

    def __init__(
        self, name: str, paths: Sequence[Path], column: str | None, reserved: frozenset[str]
    ) -> None:
        """Find the pictures of files, and of folders with subfolders; `name` is in messages."""
        super().__init__(paths[0], name, column or "image", reserved)
        if self.column in reserved:
            raise UsageError(f"--image-column {column} is a column that the output adds")
        self.left_out = 0
        """Number of files in the folders that are hidden or lack a picture's ending."""
        self._files: list[Path] = []
        for path in paths:
            if path.is_dir():
                self._search(path)
            else:
                self._files.append(path)

    def _search(self, folder: Path) -> None:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        pictures = [path for path in files if _is_shown(path.relative_to(folder))]
        if not pictures:
            raise UsageError(f"{folder} has no picture: endings are {', '.join(sorted(ENDINGS))}")
        self.left_out += len(files) - len(pictures)
        self._files += pictures

    def rows(self, *, whole: bool = False) -> Iterator[Row]:
        """Yield every picture; `Row.record` is its path."""
        del whole
        for number, path in enumerate(self._files, 1):
            yield Row(number, str(path), "", str(path))

    def values(self, rows: Sequence[Row]) -> list[dict[str, object]]:
        """Return the paths under the column's name."""
        return [{self.column: row.record} for row in rows]

    def given(self, row: Row) -> str:
        """Return the path of the row's picture."""
        return row.text or ""

    def sha256(self) -> str:
        """Return the SHA-256 of the paths."""
        return hashlib.sha256("\n".join(map(str, self._files)).encode()).hexdigest()

    def state(self) -> tuple[int, int]:
        """Return the number of pictures; `state_of_pictures` has their sizes and times."""
        return len(self._files), 0

    def where(self, number: int) -> str:
        """Return the path of a picture."""
        return str(self._files[number - 1])


def is_of_pictures(path: Path) -> bool:
    """Return whether a path is a folder, or has a picture's ending."""
    return path.is_dir() or path.suffix.lower() in ENDINGS


def _is_shown(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return not hidden and path.suffix.lower() in ENDINGS


def state_of_pictures(source: Source) -> str:
    """Return the SHA-256 of the paths, sizes and modification times of all pictures."""
    digest = hashlib.sha256()
    for row in source.rows():
        if row.text is not None:
            path = Path(source.given(row))
            status = path.stat() if path.is_file() else None
            state = (status.st_size, status.st_mtime_ns) if status else None
            digest.update(f"{path}\0{state}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def read_picture(path: str, max_bytes: int) -> bytes | Refused:
    """Return the content of a picture's file, or its rejection."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        return Refused(f"{path}: {error.strerror}")
    if len(data) > max_bytes:
        return Refused(f"{path} has more than {max_bytes} bytes")
    return data
