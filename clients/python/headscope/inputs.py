"""The inputs of calls, checked before anything is sent.

A list is a list of texts or of pairs, as on the wire: `("a", "b")` are two texts, and
`[("a", "b")]` is one pair.
"""

from __future__ import annotations

from collections.abc import Sequence

Text = str | Sequence[str]
"""One text, or a pair of them."""


def texts_of(inputs: str | Sequence[Text], *, mixed: bool = False) -> list[str | list[str]]:
    """A list of texts or of pairs, or of both where they may be mixed.

    Raises:
        TypeError: something is neither, or both are mixed.

    """
    every: list[str | list[str]] = []
    for i, one in enumerate([inputs] if isinstance(inputs, str) else inputs):
        if isinstance(one, str):
            every.append(one)
        elif len(one) == 2 and all(isinstance(text, str) for text in one):
            every.append(list(one))
        else:
            raise TypeError(f"inputs[{i}] is neither a text nor a pair of texts")
        if not mixed and isinstance(one, str) != isinstance(every[0], str):
            raise TypeError(f"inputs[{i}]: texts and pairs cannot be in one list")
    return every


def targets_of(
    targets: str | Sequence[str], inputs: Sequence[Text], name: str = "targets"
) -> list[str]:
    """Return the targets of inputs, one an input.

    Raises:
        TypeError: a target is not a text.
        ValueError: there is another number of targets than of inputs.

    """
    every = [targets] if isinstance(targets, str) else list(targets)
    for i, one in enumerate(every):
        if not isinstance(one, str):
            raise TypeError(f"{name}[{i}] is not a text")
    if len(every) != len(inputs):
        raise ValueError(f"{len(every)} {name} of {len(inputs)} inputs: give one for each input")
    return every


def only_pairs(pairs: Sequence[Sequence[str]]) -> list[list[str]]:
    """A list of pairs.

    Raises:
        TypeError: something is no pair of texts.

    """
    every = texts_of(pairs)
    for i, one in enumerate(every):
        if isinstance(one, str):
            raise TypeError(f"inputs[{i}] is no pair of texts")
    return [list(one) for one in every]


def only_texts(texts: Sequence[str]) -> list[str]:
    """A list of texts.

    Raises:
        TypeError: something is no text, or the list is one.

    """
    if isinstance(texts, str):
        raise TypeError("a list of texts is needed")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"inputs[{i}] is no text")
    return list(texts)
