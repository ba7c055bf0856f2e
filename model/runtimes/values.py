"""Value products of heads, by an artifact's own graph.

Notation: S tokens of one text, n heads, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from model.artifact.manifest import Artifact
from model.artifact.signature import VALUES_OF, MapKind
from model.runtimes.capabilities import HeadOutputs
from model.runtimes.contract import Floats
from model.runtimes.heads import HostGraph
from model.runtimes.sessions import LoadGraph

FLOATS = 2**21
"""Maximum number of features of the heads' added vectors in memory at one time: 8 MiB."""


class GraphValues(HeadOutputs):
    """Value products of heads of a kind; calls are thread-safe."""

    def __init__(self, artifact: Artifact, load: LoadGraph, kind: MapKind = "encoder") -> None:
        """Keep the arguments; nothing is loaded yet. See `HostGraph`."""
        self._graph = HostGraph(artifact, VALUES_OF[kind], load, kind)

    def value_products(
        self, states: Floats, layer: int, heads: Sequence[int], segment: int = 0
    ) -> Floats:
        """Return products `[S, n, n]` for key states `[S, H]`.

        Raises:
            ArtifactError: the parameters cannot be read.
            ModelError: the graph cannot be loaded.

        """
        outputs = self._graph.of_heads(layer, heads, segment)
        return in_parts(states, len(heads), lambda rows: outputs(rows)[0])


def in_parts(states: Floats, heads: int, of_some: Callable[[Floats], Floats]) -> Floats:
    """Compute results in blocks of tokens, so that the heads' added vectors stay within `FLOATS`.

    Args:
        states: `[S, H]`.
        heads: n.
        of_some: function from some rows of states to as many rows of the result.

    """
    step = max(1, FLOATS // (heads * states.shape[1]))
    firsts = range(0, max(1, len(states)), step)
    parts = [of_some(states[first : first + step]) for first in firsts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
