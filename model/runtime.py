"""What every runtime of an artifact's graphs can do, and which one an artifact is for.

Notation: B texts, T tokens of all of them, S tokens of one, H hidden size, L layers, N heads.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from model.artifact import HEADS, Artifact
from model.batch import Batch
from model.config import EncoderConfig
from model.errors import ModelError
from model.signature import head_parameter_name

Floats = NDArray[np.float32]
Device = Literal["auto", "cpu", "cuda"]


LONE_TOKENS = 128
"""A batch of so many is short: what computes it alone keeps little memory for it."""


class ProviderError(ModelError):
    """The hardware that was asked for does not work here."""


class Runtime(Protocol):
    """The encoder's twin, without torch.

    Calls are safe from several threads at once. On a CPU each runs on its caller's thread, which is
    best for the whole; a short text that comes while no other is computed has every core to itself.
    """

    config: EncoderConfig
    provider: str
    """What really computes, as the runtime reports it."""

    def hidden_states(self, batch: Batch, layers: Sequence[int]) -> list[Floats]:
        """Hidden states of a packed batch.

        Args:
            batch: the packed batch.
            layers: which, 0 … L; at least one.

        Returns:
            One `[T, H]` a layer asked for, in that order.

        """

    def attention(self, hidden: Floats, layer: int, heads: Sequence[int]) -> Floats:
        """Attention weights of some heads of one layer, recomputed from the layer's input.

        Args:
            hidden: hidden state `layer` of one text, `[S, H]`.
            layer: 0 … L−1.
            heads: which of 0 … N−1; at least one.

        Returns:
            `[heads, S, S]`, over keys; each row sums to 1.

        """


class Calls:
    """Counts the calls in flight."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_flight = 0

    @contextlib.contextmanager
    def call(self, batch: Batch) -> Iterator[bool]:
        """Be one of them; tells whether it is short, and the only one as it begins."""
        with self._lock:
            self._in_flight += 1
            alone = self._in_flight == 1 and len(batch.input_ids) <= LONE_TOKENS
        try:
            yield alone
        finally:
            with self._lock:
                self._in_flight -= 1


class HeadParameters:
    """Every head's parameters, which feed the attention graph."""

    def __init__(self, artifact: Artifact) -> None:
        manifest = artifact.manifest
        self._all_heads = list(range(manifest.config.num_attention_heads))
        _, *inputs = manifest.signature["attention"].inputs
        with safe_open(artifact.path(HEADS), framework="numpy") as file:
            self._layers: list[dict[str, Floats]] = [
                {
                    spec.name: file.get_tensor(head_parameter_name(spec.name, layer))
                    for spec in inputs
                }
                for layer in range(manifest.config.num_hidden_layers)
            ]

    def feed(self, layer: int, heads: Sequence[int]) -> dict[str, Floats]:
        """The graph's inputs for these heads of this layer, by name; axis 0 is heads."""
        chosen = list(heads)
        parameters = self._layers[layer]
        if chosen == self._all_heads:
            return dict(parameters)
        return {name: tensor[chosen] for name, tensor in parameters.items()}


def load_runtime(artifact: Artifact, device: Device = "cpu", threads: int = 1) -> Runtime:
    """Load an artifact's graphs on the runtime that its manifest names.

    Args:
        artifact: a checked artifact.
        device: where to run; "auto" takes CUDA where there is a device.
        threads: how many will call at once.

    Raises:
        ProviderError: the device is not there, or is not what the runtime runs on.
        ModelError: the runtime is not installed, or refuses a graph.

    """
    if artifact.manifest.engine == "openvino":
        from model.runtime_openvino import OpenVinoRuntime  # noqa: PLC0415 - an optional package

        return OpenVinoRuntime(artifact, device, threads)
    from model.runtime_onnx import OnnxRuntime  # noqa: PLC0415 - spares the other one its import

    return OnnxRuntime(artifact, device, threads)
