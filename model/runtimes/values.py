"""What heads add of each token, by an artifact's own graph, on the host and in float32.

A session is made, and parameters are mapped, at the first call for a kind of heads: a service that
is never asked holds nothing of them.

Notation: S tokens of one text, n heads, H hidden size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from model.artifact.manifest import GRAPHS, Artifact, reading
from model.artifact.mapped import mapped_tensors
from model.artifact.signature import VALUES_OF, MapKind, head_parameter_name
from model.errors import ModelError
from model.runtimes.contract import NO_DECODER, Floats
from model.runtimes.heads import heads_path

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
        self._lock = threading.Lock()
        self._kept: dict[MapKind, _Loaded] = {}

    def products(
        self, states: Floats, layer: int, heads: Sequence[int], kind: MapKind = "encoder"
    ) -> Floats:
        """`[S, n, n]` of key states `[S, H]`.

        Raises:
            ArtifactError: the parameters cannot be read.
            ModelError: the graph cannot be loaded, or there is no decoder.

        """
        loaded, chosen = self._loaded(kind), list(heads)
        specs = self._artifact.manifest.signature[VALUES_OF[kind]].inputs[1:]
        every = {
            spec.name: loaded.parameters[head_parameter_name(spec.name, layer, kind)]
            for spec in specs
        }
        if chosen != list(range(len(every["output_weight"]))):
            every = {name: tensor[chosen] for name, tensor in every.items()}

        def of_some(rows: Floats) -> Floats:
            return loaded.session.run(["value_products"], {"key_states": rows, **every})[0]

        return in_parts(states, len(chosen), of_some)

    def _loaded(self, kind: MapKind) -> _Loaded:
        artifact = self._artifact
        if VALUES_OF[kind] not in artifact.manifest.signature:
            raise ModelError(NO_DECODER)
        with self._lock:
            if kind not in self._kept:
                with reading(path := heads_path(artifact, kind)):
                    parameters = mapped_tensors(path)
                graph = artifact.path(GRAPHS[VALUES_OF[kind]])
                self._kept[kind] = _Loaded(self._session(graph), parameters)
            return self._kept[kind]


def in_parts(states: Floats, heads: int, of_some: Callable[[Floats], Floats]) -> Floats:
    """What some tokens at a time give, so that what the heads add of them stays within `FLOATS`.

    Args:
        states: `[S, H]`.
        heads: n.
        of_some: some rows of states → as many of the result.

    """
    step = max(1, FLOATS // (heads * states.shape[1]))
    firsts = range(0, max(1, len(states)), step)
    parts = [of_some(states[first : first + step]) for first in firsts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
