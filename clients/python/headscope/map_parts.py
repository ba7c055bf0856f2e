"""Tokens of the rows and columns of a reply's maps, which may be parts or pooled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headscope.errors import HeadscopeError
from headscope.fields import MapKind

Axis = Literal["queries", "keys"]
PREFIXES: Mapping[MapKind, str] = {"encoder": "", "decoder": "decoder_", "cross": "cross_"}


def tokens_of(
    tensors: Mapping[str, NDArray[np.generic]], kind: MapKind, axis: Axis, size: int
) -> list[list[int]]:
    """Return the tokens of each of `size` rows or columns: several only in a pooled map."""
    prefix = PREFIXES[kind]
    chosen, bins = tensors.get(f"{prefix}{axis}"), tensors.get(f"{prefix}bins.{axis}")
    places = list(range(size)) if chosen is None else chosen.tolist()
    if bins is None:
        return [[place] for place in places]
    return [places[start:end] for start, end in bins.tolist()]


def check_whole(tensors: Mapping[str, NDArray[np.generic]], kind: MapKind) -> None:
    """Raise an error if maps of a kind are incomplete or pooled.

    Raises:
        HeadscopeError: the maps are incomplete or pooled.

    """
    names = {f"{PREFIXES[kind]}{name}" for name in ("queries", "keys", "bins.queries")}
    if names & tensors.keys():
        raise HeadscopeError(
            "whole maps are required: request them without queries, keys and max_size"
        )


def names_of(groups: Sequence[Sequence[int]], tokens: Sequence[str]) -> tuple[str, ...]:
    """Return the token of each row or column; the first and the last of several."""
    return tuple("…".join(tokens[i] for i in dict.fromkeys((own[0], own[-1]))) for own in groups)
