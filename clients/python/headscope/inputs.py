"""Validation of the inputs of calls, before anything is sent.

A list is a list of texts or of pairs, as on the wire: `("a", "b")` is two texts, and `[("a", "b")]`
is one pair. Some calls also take pictures, which may stand beside texts and pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from headscope.pictures import Picture, PictureLike, is_picture, read_picture

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
