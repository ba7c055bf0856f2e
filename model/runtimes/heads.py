"""Every head's query, key and score parameters, which feed the attention graphs."""

from __future__ import annotations

from collections.abc import Sequence

from safetensors import safe_open

from model.artifact.manifest import HEADS, Artifact, reading
from model.artifact.signature import STATES, head_parameter_name
from model.runtimes.contract import Floats


def read_heads(artifact: Artifact) -> list[dict[str, Floats]]:
    """The parameters of all heads of each layer by name, in the attention graph's order.

    Raises:
        ArtifactError: the file cannot be read.

    """
    manifest = artifact.manifest
    inputs = manifest.signature["attention"].inputs[len(STATES) :]
    path = artifact.path(HEADS)
    with reading(path), safe_open(path, framework="numpy") as file:
        return [
            {spec.name: file.get_tensor(head_parameter_name(spec.name, layer)) for spec in inputs}
            for layer in range(manifest.config.num_hidden_layers)
        ]


class HeadParameters:
    """Every head's parameters, which feed the attention graph."""

    def __init__(self, artifact: Artifact) -> None:
        self._all_heads = list(range(artifact.manifest.config.num_attention_heads))
        self._layers = read_heads(artifact)

    def feed(self, layer: int, heads: Sequence[int]) -> dict[str, Floats]:
        """The graph's inputs for these heads of this layer, by name; axis 0 is heads."""
        chosen = list(heads)
        parameters = self._layers[layer]
        if chosen == self._all_heads:
            return dict(parameters)
        return {name: tensor[chosen] for name, tensor in parameters.items()}
