"""Capabilities that the host computes in float32, whatever computes a runtime's encoder."""

from __future__ import annotations

from collections.abc import Sequence

from model.artifact.manifest import Artifact
from model.numerics.task_head import TaskConfig
from model.runtimes.capabilities import HeadScoring, TaskHead
from model.runtimes.contract import Floats, HeadScores
from model.runtimes.decomposition import GraphDecomposition
from model.runtimes.heads import GraphValues, HostGraph
from model.runtimes.sessions import LoadGraph, Session


class GraphHeadScores(HeadScoring):
    """Queries, keys and scores of heads; calls are thread-safe."""

    def __init__(self, artifact: Artifact, load: LoadGraph) -> None:
        """Keep the arguments; nothing is loaded yet. See `HostGraph`."""
        self._graph = HostGraph(artifact, "head_scores", load)

    def head_scores(
        self, states: Floats, layer: int, heads: Sequence[int], segment: int = 0
    ) -> HeadScores:
        """Return queries, keys and scores.

        Raises:
            ArtifactError: the parameters cannot be read.
            ModelError: the graph cannot be loaded.

        """
        return HeadScores(*self._graph.of_heads(layer, heads, segment)(states))


def session_head(config: TaskConfig, session: Session) -> TaskHead:
    """Return the task head of a session."""
    return TaskHead(config, lambda rows: session.run(["scores"], {"rows": rows})[0])


def host_parts(artifact: Artifact, load: LoadGraph) -> list[object]:
    """Return the parts by an artifact's graphs for the host, each loaded at its first call."""
    parts: list[object] = [GraphValues(artifact, load), GraphHeadScores(artifact, load)]
    if not artifact.manifest.serving_only:
        parts.append(GraphDecomposition(artifact, load))
    return parts
