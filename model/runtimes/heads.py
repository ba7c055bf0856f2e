"""Every head's query, key and score parameters, which feed the attention graphs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open

from model.artifact.manifest import DECODER_HEADS, HEADS, Artifact, reading
from model.artifact.signature import ATTENTION_OF, STATES, MapKind, head_parameter_name
from model.runtimes.contract import Floats


def read_heads(artifact: Artifact, kind: MapKind = "encoder") -> list[dict[str, Floats]]:
    """The parameters of all heads of each layer by name, in the attention graph's order.

    Raises:
        ArtifactError: the file cannot be read.

    """
    manifest = artifact.manifest
    inputs = manifest.signature[ATTENTION_OF[kind]].inputs[len(STATES) :]
    config = manifest.decoder.layers if kind != "encoder" and manifest.decoder else manifest.config
    with reading(path := heads_path(artifact, kind)), safe_open(path, framework="numpy") as file:
        return [
            {
                spec.name: file.get_tensor(head_parameter_name(spec.name, layer, kind))
                for spec in inputs
            }
            for layer in range(config.num_hidden_layers)
        ]


def heads_path(artifact: Artifact, kind: MapKind) -> Path:
    """The file of all parameters of heads of a kind."""
    return artifact.path(HEADS if kind == "encoder" else DECODER_HEADS)


class HeadParameters:
    """Every head's parameters, which feed the attention graph."""

    def __init__(self, artifact: Artifact, kind: MapKind = "encoder") -> None:
        self._layers = read_heads(artifact, kind)

    def feed(self, layer: int, heads: Sequence[int]) -> dict[str, Floats]:
        """The graph's inputs for these heads of this layer, by name; axis 0 is heads."""
        chosen, parameters = list(heads), self._layers[layer]
        if chosen == list(range(len(parameters["query_weight"]))):
            return dict(parameters)
        return {name: tensor[chosen] for name, tensor in parameters.items()}
