"""Validation of the inputs of calls, before anything is sent.

A list is a list of texts or of pairs, as on the wire: `("a", "b")` is two texts, and `[("a", "b")]`
is one pair. Some calls also take pictures, which may stand beside texts and pairs.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, TypeGuard, cast


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


Text = str | Sequence[str]
"""Text, or pair of texts."""
Item = Text | Picture
Side = str | PictureLike
"""Text or picture of a pair whose sides are encoded apart."""
PairItem = Sequence[str | Picture]
Given = Text | PictureLike
"""Input of a call that takes pictures."""
Inputs = Given | Sequence[Given]


def items_of(inputs: Inputs, *, mixed: bool = False) -> list[Item]:
    """Return a list of texts, of pairs, or of pictures among both.

    Raises:
        OSError: a picture's file cannot be read.
        TypeError: an input is neither, or texts and pairs are mixed without pictures.

    """
    if is_picture(inputs):
        return [read_picture(inputs)]
    if isinstance(inputs, str) or not any(map(is_picture, cast("Sequence[Given]", inputs))):
        return [*texts_of(cast("str | Sequence[Text]", inputs), mixed=mixed)]
    items: list[Item] = []
    for i, given in enumerate(cast("Sequence[Given]", inputs)):
        if is_picture(given):
            items.append(read_picture(given))
            continue
        try:
            items += texts_of([cast("Text", given)])
        except TypeError:
            raise TypeError(f"inputs[{i}] is not a text, a pair of texts or a picture") from None
    return items


def texts_of(inputs: str | Sequence[Text], *, mixed: bool = False) -> list[str | list[str]]:
    """Return a list of texts or of pairs; of both if they may be mixed.

    Raises:
        TypeError: an input is neither, or texts and pairs are mixed.

    """
    checked: list[str | list[str]] = []
    for i, text in enumerate([inputs] if isinstance(inputs, str) else inputs):
        if isinstance(text, str):
            checked.append(text)
        elif len(text) == 2 and all(isinstance(part, str) for part in text):
            checked.append(list(text))
        else:
            raise TypeError(f"inputs[{i}] is neither a text nor a pair of texts")
        if not mixed and isinstance(text, str) != isinstance(checked[0], str):
            raise TypeError(f"inputs[{i}]: texts and pairs cannot be in one list")
    return checked


def targets_of(
    targets: str | Sequence[str], inputs: Sequence[Item], name: str = "targets"
) -> list[str]:
    """Return the targets of inputs, one per input.

    Raises:
        TypeError: a target is not a text.
        ValueError: the numbers of targets and inputs differ.

    """
    checked = [targets] if isinstance(targets, str) else list(targets)
    for i, target in enumerate(checked):
        if not isinstance(target, str):
            raise TypeError(f"{name}[{i}] is not a text")
    if len(checked) != len(inputs):
        raise ValueError(f"{len(checked)} {name} of {len(inputs)} inputs: give one for each input")
    return checked


def sides_of(pairs: Sequence[Sequence[Side]]) -> list[PairItem]:
    """Return a list of pairs of texts or pictures.

    Raises:
        OSError: a picture's file cannot be read.
        TypeError: an input is not a pair of texts or pictures.

    """
    checked: list[PairItem] = []
    for i, pair in enumerate(pairs):
        sides = () if isinstance(pair, str) or is_picture(pair) else tuple(pair)
        if len(sides) != 2 or not all(isinstance(s, str) or is_picture(s) for s in sides):
            raise TypeError(f"inputs[{i}] is not a pair of texts or pictures")
        checked.append([read_picture(side) if is_picture(side) else str(side) for side in sides])
    return checked


def only_texts(texts: Sequence[str]) -> list[str]:
    """Return a list of texts.

    Raises:
        TypeError: an input is not a text, or the argument is a single text.

    """
    if isinstance(texts, str):
        raise TypeError("a list of texts is needed")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"inputs[{i}] is not a text")
    return list(texts)
