"""What heads add of each token, by an artifact's own graph, on the host and in float32.

The session is made, and parameters are mapped, at the first call: a service that is never asked
holds nothing of them.

Notation: S tokens of one text, n heads, H hidden size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from model.artifact.manifest import HEADS, VALUE_NORMS_GRAPH, Artifact, reading
from model.artifact.mapped import mapped_tensors
from model.artifact.signature import head_parameter_name
from model.runtimes.contract import Floats

FLOATS = 2**21
"""Most features of what heads add that exist at a time: 8 MiB."""


class Session(Protocol):
    """A loaded graph, as ONNX Runtime has it."""

    def run(self, names: Sequence[str], feed: Mapping[str, Any]) -> list[Floats]:
        """The outputs of these names."""


class _Loaded(NamedTuple):
    session: Session
    parameters: dict[str, Floats]


class GraphValues:
    """Products of what heads add; calls are safe from several threads at once."""

    def __init__(self, artifact: Artifact, session: Callable[[Path], Session]) -> None:
        """Load nothing yet.

        Args:
            artifact: one of ours.
            session: loads a graph, to be run on its caller's thread.

        """
        self._artifact = artifact
        self._session = session
        self._every = list(range(artifact.manifest.config.num_attention_heads))
        self._lock = threading.Lock()
        self._kept: _Loaded | None = None

    def products(self, states: Floats, layer: int, heads: Sequence[int]) -> Floats:
        """`[S, n, n]` of key states `[S, H]`.

        Raises:
            ArtifactError: the parameters cannot be read.
            ModelError: the graph cannot be loaded.

        """
        loaded, chosen = self._loaded(), list(heads)
        specs = self._artifact.manifest.signature["value_norms"].inputs[1:]
        every = {
            spec.name: loaded.parameters[head_parameter_name(spec.name, layer)] for spec in specs
        }
        if chosen != self._every:
            every = {name: tensor[chosen] for name, tensor in every.items()}

        def of_some(rows: Floats) -> Floats:
            return loaded.session.run(["value_products"], {"key_states": rows, **every})[0]

        return in_parts(states, len(chosen), of_some)

    def _loaded(self) -> _Loaded:
        with self._lock:
            if self._kept is None:
                artifact = self._artifact
                with reading(path := artifact.path(HEADS)):
                    parameters = mapped_tensors(path)
                self._kept = _Loaded(self._session(artifact.path(VALUE_NORMS_GRAPH)), parameters)
            return self._kept


def in_parts(states: Floats, heads: int, of_some: Callable[[Floats], Floats]) -> Floats:
    """What some tokens at a time give, so that what the heads add of them stays within `FLOATS`.

    Args:
        states: `[S, H]`.
        heads: n.
        of_some: some rows of states → as many of the result.

    """
    step = max(1, FLOATS // (heads * states.shape[1]))
    parts = [of_some(states[first : first + step]) for first in range(0, len(states), step)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
