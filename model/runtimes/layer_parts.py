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
from model.numerics.adapters import with_adapter
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
        self._tensors: list[dict[str, Floats]] = []
        self._layers: list[dict[str, Floats]] = []

    def layer_parts(self, step: LayerStep) -> LayerParts:
        """Return the parts of a layer.

        Raises:
            ArtifactError: the weights cannot be read.
            ModelError: the graph cannot be loaded.

        """
        session = self._loaded()
        parameters = self._layers[step.layer]
        if step.adapter:
            parameters = self._parameters(step.layer, step.adapter)
        outputs = [spec.name for spec in self._artifact.manifest.signature["layer_parts"].outputs]
        own = {
            "states": step.states,
            "head_mask": step.head_mask,
            "patch": np.ascontiguousarray(step.patch),
        }
        return LayerParts(*session.run(outputs, own | parameters))

    def _loaded(self) -> Session:
        with self._lock:
            if self._session is None:
                self._tensors = self._mapped()
                layers = range(self._artifact.manifest.config.num_hidden_layers)
                self._layers = [self._parameters(layer) for layer in layers]
                self._session = self._load(self._artifact.path(GRAPHS["layer_parts"]))
            return self._session

    def _mapped(self) -> list[dict[str, Floats]]:
        """Map the parameters of heads, and all weights."""
        tensors = []
        for name in (HEADS, WEIGHTS):
            with reading(self._artifact.path(name)):
                tensors.append(mapped_tensors(self._artifact.path(name)))
        return tensors

    def _parameters(self, layer: int, adapter: int = 0) -> dict[str, Floats]:
        """Return the parameters of a layer by the names of the graph's inputs."""
        manifest = self._artifact.manifest
        config = manifest.config
        of_heads, weights = (with_adapter(own, adapter, config.adapters) for own in self._tensors)
        keys = parameter_keys(config, layer)
        parameters = {name: weights[key] for name, key in keys.items()}
        applies = final_norm_applies(config, layer)
        if applies is not None:
            parameters[FINAL_APPLIES] = applies
        inputs = manifest.signature["layer_parts"].inputs[3:]
        names = [spec.name for spec in inputs if spec.name not in parameters]
        parameters |= {name: of_heads[head_parameter_name(name, layer)] for name in names}
        return {name: np.ascontiguousarray(tensor) for name, tensor in parameters.items()}
