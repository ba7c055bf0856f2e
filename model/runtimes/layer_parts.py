"""Parts of a layer by an artifact's own graph, on the host and in float32 in every precision.

The session is created, and weight files are mapped, at the first step.
"""

from __future__ import annotations

import threading

import numpy as np

from model.artifact.access import reading
from model.artifact.layer_parts import (
    FINAL_APPLIES,
    LayerParts,
    LayerStep,
    final_norm_applies,
    parameter_keys,
)
from model.artifact.manifest import GRAPHS, HEADS, WEIGHTS, Artifact
from model.artifact.mapped import mapped_tensors
from model.artifact.signature import head_parameter_name
from model.runtimes.capabilities import LayerRecomputation
from model.runtimes.contract import Floats
from model.runtimes.sessions import LoadGraph, Session


class GraphLayerParts(LayerRecomputation):
    """Graph of a layer's parts; calls are thread-safe."""

    def __init__(self, artifact: Artifact, load: LoadGraph) -> None:
        """Keep the arguments; nothing is loaded yet. See `HostGraph`."""
        self._artifact, self._load = artifact, load
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._layers: list[dict[str, Floats]] = []

    def layer_parts(self, step: LayerStep) -> LayerParts:
        """Return the parts of a layer.

        Raises:
            ArtifactError: the weights cannot be read.
            ModelError: the graph cannot be loaded.

        """
        session = self._loaded()
        outputs = [spec.name for spec in self._artifact.manifest.signature["layer_parts"].outputs]
        own = {
            "states": step.states,
            "head_mask": step.head_mask,
            "patch": np.ascontiguousarray(step.patch),
        }
        return LayerParts(*session.run(outputs, own | self._layers[step.layer]))

    def _loaded(self) -> Session:
        with self._lock:
            if self._session is None:
                self._layers = self._parameters()
                self._session = self._load(self._artifact.path(GRAPHS["layer_parts"]))
            return self._session

    def _parameters(self) -> list[dict[str, Floats]]:
        """Map the parameters of each layer by the names of the graph's inputs."""
        artifact, config = self._artifact, self._artifact.manifest.config
        tensors = []
        for name in (HEADS, WEIGHTS):
            with reading(artifact.path(name)):
                tensors.append(mapped_tensors(artifact.path(name)))
        of_heads, weights = tensors
        inputs = artifact.manifest.signature["layer_parts"].inputs[3:]
        layers = []
        for layer in range(config.num_hidden_layers):
            keys = parameter_keys(config, layer)
            parameters = {name: weights[key] for name, key in keys.items()}
            applies = final_norm_applies(config, layer)
            if applies is not None:
                parameters[FINAL_APPLIES] = applies
            names = [spec.name for spec in inputs if spec.name not in parameters]
            parameters |= {name: of_heads[head_parameter_name(name, layer)] for name in names}
            layers.append({name: np.ascontiguousarray(p) for name, p in parameters.items()})
        return layers
