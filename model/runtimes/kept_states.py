"""Hidden states that stay on a device for as long as a request refers to them.

Notation: n tokens of a text, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from model.numerics.batch import Ids
from model.runtimes.contract import Floats


class KeptLayer:
    """Hidden state of a batch on a device, and the rows of the texts that were asked for."""

    def __init__(
        self, values: Any, rows: Sequence[Ids], fetch: Callable[[Any, Ids], Floats]
    ) -> None:
        """Keep an `OrtValue`, of which `fetch` copies some rows."""
        self.values, self.rows = values, rows
        self.size_bytes: int = values.tensor_size_in_bytes()
        self._fetch = fetch
        self._copies: list[Floats] | None = None

    def copies(self) -> list[Floats]:
        """Return the states `[n, H]` of all texts on the host, copied at the first call."""
        if self._copies is None:
            cuts = np.cumsum([len(rows) for rows in self.rows])[:-1]
            self._copies = np.split(self._fetch(self.values, np.concatenate(self.rows)), cuts)
        return self._copies


class KeptState:
    """Hidden state of a text on a device; see `model.runtimes.contract.HiddenState`."""

    def __init__(self, layer: KeptLayer, text: int) -> None:
        """Refer to a text of a layer by its place among the texts that were asked for."""
        self.layer, self.rows = layer, layer.rows[text]
        self.shape = len(self.rows), int(layer.values.shape()[-1])
        self._text = text

    def __len__(self) -> int:
        return len(self.rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        return np.array(self.layer.copies()[self._text], dtype, copy=copy)

    def __reduce__(self) -> tuple[Any, ...]:
        return np.asarray, (np.asarray(self),)
