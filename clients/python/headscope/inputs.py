"""Validation of the inputs of calls, before anything is sent.

A list is a list of texts or of pairs, as on the wire: `("a", "b")` is two texts, and `[("a", "b")]`
is one pair. Some calls also take pictures, which may stand beside texts and pairs.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeGuard


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


@dataclass(frozen=True)
class Picture:
    """File of a picture."""

    data: bytes
    name: str
    """Name in place of a text: the file's name, or what the caller gave."""
    first_frame: bool = False
    """Whether an animated picture stands for its first frame."""

    @property
    def characters(self) -> int:
        """Number of characters of the file in base64."""
        return 4 * -(-len(self.data) // 3)

    @property
    def element(self) -> Mapping[str, object]:
        """Element of a request's inputs."""
        first_frame = {"first_frame": True} if self.first_frame else {}
        return {"image": base64.b64encode(self.data).decode("ascii"), **first_frame}


PictureLike: TypeAlias = os.PathLike[str] | bytes | PillowImage
"""Picture of a caller; a string is a text, never a path."""
Text: TypeAlias = str | Sequence[str]
"""Text, or pair of texts."""
Given: TypeAlias = Text | PictureLike
"""Input of a call that takes pictures."""
Inputs: TypeAlias = "Given | Sequence[Given]"
Side: TypeAlias = "str | PictureLike"
"""Text or picture of a pair whose sides are encoded apart."""
Item: TypeAlias = str | Picture | Sequence[str | Picture]
"""Checked input: a text or a picture, or a pair."""


def is_picture(value: object) -> TypeGuard[PictureLike]:
    """Return whether a value of a caller is a picture."""
    return isinstance(value, os.PathLike | bytes | bytearray | memoryview) or (
        hasattr(value, "mode") and hasattr(value, "save")
    )


def read_picture(value: PictureLike) -> Picture:
    """Return the file of a picture; an image of Pillow becomes a PNG file, without a loss."""
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


def items_of(inputs: Inputs, *, mixed: bool = False, pictures: bool = True) -> list[Item]:
    """Return a list of texts or of pairs; of both if `mixed`, or beside pictures."""
    given: Any = [inputs] if isinstance(inputs, str) or is_picture(inputs) else inputs
    items: list[Item] = []
    for i, value in enumerate(given):
        if isinstance(value, str | Picture):
            items.append(value)
        elif pictures and is_picture(value):
            items.append(read_picture(value))
        elif isinstance(value, Collection) and [isinstance(s, str) for s in value] == [True, True]:
            items.append(list(value))
        else:
            kinds = "a text, a pair of texts or a picture" if pictures else "a text or a pair"
            raise TypeError(f"inputs[{i}] is not {kinds}")
    mixed = mixed or any(isinstance(item, Picture) for item in items)
    for i, item in enumerate(items):
        if not mixed and isinstance(item, str) != isinstance(items[0], str):
            raise TypeError(f"inputs[{i}]: texts and pairs cannot be in one list")
    return items


def pairs_of(pairs: Sequence[Sequence[Side]]) -> list[Item]:
    """Return a list of pairs of texts or pictures; raise a TypeError for another input."""
    checked: list[Item] = []
    for i, pair in enumerate(pairs):
        sides = () if isinstance(pair, str) or is_picture(pair) else tuple(pair)
        if len(sides) != 2 or not all(isinstance(s, str) or is_picture(s) for s in sides):
            raise TypeError(f"inputs[{i}] is not a pair of texts or pictures")
        checked.append([read_picture(side) if is_picture(side) else str(side) for side in sides])
    return checked


def list_of_texts(texts: Sequence[str], name: str = "inputs") -> list[str]:
    """Return a list of texts; raise a TypeError for another input, or for a single text."""
    if isinstance(texts, str):
        raise TypeError("a list of texts is needed")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{i}] is not a text")
    return list(texts)


def targets_of(targets: str | Sequence[str], count: int, name: str = "targets") -> list[str]:
    """Return the targets of `count` inputs; raise a ValueError if there is not one for each."""
    checked = list_of_texts([targets] if isinstance(targets, str) else targets, name)
    if len(checked) != count:
        raise ValueError(f"{len(checked)} {name} of {count} inputs: give one for each input")
    return checked
