"""Loaded graphs, as ONNX Runtime's sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.generic]
Outputs: TypeAlias = list[NDArray[Any]]
"""Outputs of a graph, of types that ONNX Runtime does not declare."""


class Session(Protocol):
    """Loaded graph."""

    def run(self, names: Sequence[str], feed: Mapping[str, Array], /) -> Outputs:
        """Return the outputs with these names."""

    def get_providers(self) -> list[str]:
        """Return the hardware interfaces that compute."""


LoadGraph: TypeAlias = Callable[[Path], Session]
"""Function that loads a graph, which then runs on its caller's thread."""
