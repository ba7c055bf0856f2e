"""What every runtime of an artifact's graphs can do, and which one an artifact is for.

Notation: B texts, T tokens of all of them, S tokens of one, H hidden size, L layers, N heads.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from model.artifact import (
    HEADS,
    RUNTIMES,
    Artifact,
    Precision,
    RuntimeName,
    WeightBits,
    reading,
)
from model.batch import Batch, pack
from model.config import EncoderConfig
from model.errors import ProviderError
from model.pooling import TextPooling, l2_normalize, pool
from model.signature import head_parameter_name

Floats = NDArray[np.float32]
Device = Literal["auto", "cpu", "cuda"]

LONE_TOKENS = 128
"""A batch of so many is short: what computes it alone keeps little memory for it."""


class Runtime(Protocol):
    """The encoder's twin, without torch.

    Calls are safe from several threads at once. On a CPU each runs on its caller's thread, which is
    best for the whole; a short text that comes while no other is computed has every core to itself.
    """

    config: EncoderConfig
    provider: str
    """What really computes, as the runtime reports it."""

    @property
    def alive(self) -> bool:
        """False once the device is lost: nothing will ever be computed again."""

    def encode(
        self,
        batch: Batch,
        hidden: Sequence[tuple[int, int]],
        poolings: Sequence[TextPooling],
        head_mask: Floats | None = None,
    ) -> tuple[list[Floats], list[Floats]]:
        """One forward pass, and of it what is asked for; nothing else leaves the device.

        Args:
            batch: the packed batch.
            hidden: (text, layer) of each hidden state asked for, layers 0 … L.
            poolings: the vectors asked for; something is asked for.
            head_mask: as for `hidden_states`.

        Returns:
            A `[S, H]` each hidden state and a `[H]` each pooling, in the order asked.

        Raises:
            DeviceLostError: now or before, the device failed for good.

        """

    def warm_up(self, batch_tokens: int, longest: int, /) -> None:
        """Compute once whatever is slow, or takes memory, the first time.

        Args:
            batch_tokens: the most tokens of a batch.
            longest: the most tokens of a text.

        """

    def hidden_states(
        self, batch: Batch, layers: Sequence[int], head_mask: Floats | None = None
    ) -> list[Floats]:
        """Hidden states of a packed batch.

        Args:
            batch: the packed batch.
            layers: which, 0 … L; at least one.
            head_mask: `[B, L, N]`, multiplies each head's output; 0 ablates it. All 1 when None.

        Returns:
            One `[T, H]` a layer asked for, in that order.

        Raises:
            DeviceLostError: now or before, the device failed for good.

        """

    def attention(self, hidden: Floats, layer: int, heads: Sequence[int]) -> Floats:
        """Attention weights of some heads of one layer, recomputed from the layer's input.

        Args:
            hidden: hidden state `layer` of one text, `[S, H]`.
            layer: 0 … L−1.
            heads: which of 0 … N−1; at least one.

        Returns:
            `[heads, S, S]`, over keys; each row sums to 1.

        Raises:
            DeviceLostError: now or before, the device failed for good.

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


def every_head(batch: Batch, config: EncoderConfig) -> Floats:
    """The head mask `[B, L, N]` that ablates none."""
    texts = len(batch.padded_index)
    return np.ones((texts, config.num_hidden_layers, config.num_attention_heads), np.float32)


class HostRuntime(ABC):
    """A runtime whose hidden states come to the host whole, where all else is done."""

    config: EncoderConfig
    alive = True

    @abstractmethod
    def hidden_states(
        self, batch: Batch, layers: Sequence[int], head_mask: Floats | None = None
    ) -> list[Floats]:
        """`[T, H]` a layer."""

    def encode(
        self,
        batch: Batch,
        hidden: Sequence[tuple[int, int]],
        poolings: Sequence[TextPooling],
        head_mask: Floats | None = None,
    ) -> tuple[list[Floats], list[Floats]]:
        """`[S, H]` a hidden state, a view; `[H]` a pooling."""
        layers = layers_of(hidden, poolings)
        states = dict(zip(layers, self.hidden_states(batch, layers, head_mask), strict=True))
        ends = batch.cu_seqlens.tolist()

        def of(text: int, layer: int) -> Floats:
            return states[layer][ends[text] : ends[text + 1]]

        vectors = []
        for asked in poolings:
            vector = pool(of(asked.text, asked.layer)[asked.first_token :], asked.mode)
            n = asked.unit_features
            if n:
                vector[:n] = l2_normalize(vector[:n])
            vectors.append(vector)
        return [of(*each) for each in hidden], vectors

    def warm_up(self, *_: int) -> None:
        """One short batch: on a CPU, memory that a large one would take is better left."""
        self.hidden_states(pack([([0], [0])]), [self.config.num_hidden_layers])


def layers_of(hidden: Sequence[tuple[int, int]], poolings: Sequence[TextPooling]) -> list[int]:
    """The layers of which something is asked, ascending."""
    return sorted({layer for _, layer in hidden} | {asked.layer for asked in poolings})


def read_heads(artifact: Artifact) -> list[dict[str, Floats]]:
    """The parameters of all heads of each layer by name, in the attention graph's order.

    Raises:
        ArtifactError: the file cannot be read.

    """
    manifest = artifact.manifest
    _, *inputs = manifest.signature["attention"].inputs
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


def check_device(engine: RuntimeName, device: Device) -> None:
    """Refuse a device that an engine cannot run on here, before any work is done.

    Raises:
        ProviderError: says what is missing.

    """
    if device != "cuda":
        return
    if engine == "openvino":
        raise ProviderError("device cuda: OpenVINO runs on the CPU only")
    from model.runtime_onnx import choose  # noqa: PLC0415 - spares the other one its import

    choose(device)


def weight_bits(precision: Precision) -> WeightBits | None:
    """Of int8's weights, as this processor needs them; None in another precision.

    Raises:
        ModelError: OpenVINO is not installed.

    """
    if precision != "int8":
        return None
    from model.processor import saturates  # noqa: PLC0415 - an optional package

    return 7 if saturates() else 8


def has_products(precision: Precision) -> bool:
    """Whether this processor has instructions for a precision that is meant to be fast on it.

    Raises:
        ModelError: OpenVINO is not installed.

    """
    if RUNTIMES[precision] != "openvino":
        return True
    from model.processor import computes_bfloat16, saturates  # noqa: PLC0415 - an optional package

    return computes_bfloat16() if precision == "bf16" else not saturates()


def load_runtime(
    artifact: Artifact,
    device: Device = "cpu",
    threads: int = 1,
    device_id: int = 0,
    device_memory_bytes: int | None = None,
) -> Runtime:
    """Load an artifact's graphs on the runtime that its manifest names.

    Args:
        artifact: a checked artifact.
        device: where to run; "auto" takes CUDA where there is a device.
        threads: how many will call at once.
        device_id: which of several CUDA devices.
        device_memory_bytes: the most that each of the three graphs may take on a CUDA device.

    Raises:
        ProviderError: the device is not there, or is not what the runtime or artifact is for.
        ModelError: the runtime is not installed, or refuses a graph.

    """
    if artifact.manifest.engine == "openvino":
        check_device("openvino", device)
        from model.runtime_openvino import OpenVinoRuntime  # noqa: PLC0415 - an optional package

        return OpenVinoRuntime(artifact, threads)
    from model.runtime_onnx import load  # noqa: PLC0415 - spares the other one its import

    return load(artifact, device, threads, device_id, device_memory_bytes)
