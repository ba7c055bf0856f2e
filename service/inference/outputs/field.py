"""Arrays of a text: their names, dtypes and axes, which every form of a reply or file reads.

Notation: B texts, S tokens of one text, H hidden size, D features of a vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
TextArrays = dict[str, Array]
"""Arrays of a text by the name of their field."""
VECTOR = ""
"""Dtype of a field whose values have the `vector_type` of the request."""


@dataclass(frozen=True)
class Field:
    """Array of each text."""

    name: str
    """Name in replies; a dot precedes the name of a member of a JSON object."""
    dtype: str
    """Name of the dtype in numpy, or `VECTOR`."""
    axes: tuple[str, ...] = ()
    """Symbols of the axes of one text, as in `Output.sizes`."""
    about: str = ""
    """Description for the OpenAPI document."""
    ragged: bool = False
    """Whether the first axis differs between texts, which are joined end to end."""
    layered: bool = False
    """Whether `layers` of a request put an axis of hidden states in front."""
    fact: bool = False
    """Whether JSON has the values as numbers, even if vectors are base64."""
    bounds_of: str = ""
    """Field whose texts start and end at these values, `[B + 1]`: a tensor, and not in JSON."""
    column: str = ""
    """Name in files of rows; `name` if empty."""

    @property
    def tensor(self) -> str:
        """Name of the tensor of all texts."""
        return self.name.replace(".", "_")


def bounds(lengths: Sequence[int]) -> NDArray[np.int32]:
    """Return the start of each text in a tensor of all, and the end of the last, `[B + 1]`."""
    return np.cumsum([0, *lengths]).astype(np.int32)


def joined(fields: Sequence[Field], texts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the tensors of all texts by name: ragged ones end to end, without padding."""
    return {field.tensor: _joined(field, texts) for field in fields}


def _joined(field: Field, texts: Sequence[Mapping[str, Array]]) -> Array:
    arrays = [arrays[field.bounds_of or field.name] for arrays in texts]
    if field.bounds_of:
        return bounds([*map(len, arrays)])
    if field.ragged:
        tensor = np.concatenate(arrays, -len(field.axes))
    else:
        tensor = np.stack(arrays, -1 - len(field.axes))
    return tensor if field.dtype == VECTOR else tensor.astype(field.dtype, copy=False)
