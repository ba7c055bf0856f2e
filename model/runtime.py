"""An artifact's graphs on ONNX Runtime: the encoder's twin, without torch.

Notation: B batch, S tokens, H hidden size, L layers, N heads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from safetensors import safe_open

from model.artifact import ATTENTION_GRAPH, ENCODER_GRAPH, HEADS, Artifact
from model.batch import Batch
from model.errors import ModelError
from model.signature import GraphName, head_parameter_name, hidden_state_name

Floats = NDArray[np.float32]
Device = Literal["auto", "cpu", "cuda"]
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class ProviderError(ModelError):
    """The execution provider that was asked for does not work here."""


class OnnxEncoder:
    """Hidden states and attention weights from an artifact.

    Calls are safe from several threads at once; each runs on its caller's thread.
    """

    def __init__(self, artifact: Artifact, device: Device = "cpu") -> None:
        """Load the graphs.

        Raises:
            ProviderError: CUDA was asked for and is not what the session runs on.
            ModelError: ONNX Runtime refuses a graph.

        """
        manifest = artifact.manifest
        self.config = manifest.config
        self._encoder = _session(artifact, ENCODER_GRAPH, device)
        self._attention = _session(artifact, ATTENTION_GRAPH, device)
        self.provider: str = self._encoder.get_providers()[0]
        _, *parameters = manifest.signature["attention"].inputs
        self._head_parameters = _head_parameters(artifact, [spec.name for spec in parameters])

    @property
    def sessions(self) -> dict[GraphName, onnxruntime.InferenceSession]:
        """The loaded graphs, by name, for checking their signatures."""
        return {"encoder": self._encoder, "attention": self._attention}

    def hidden_states(self, batch: Batch, layers: Sequence[int]) -> list[Floats]:
        """Hidden states of a padded batch.

        Args:
            batch: the padded batch.
            layers: which, 0 … L; at least one.

        Returns:
            One `[B, S, H]` a layer asked for, in that order. Rows of padding are undefined.

        """
        outputs = [hidden_state_name(layer) for layer in layers]
        feed = {
            "input_ids": batch.input_ids,
            "attention_mask": batch.attention_mask,
            "token_type_ids": batch.token_type_ids,
        }
        return self._encoder.run(outputs, feed)

    def attention(self, hidden: Floats, layer: int, heads: Sequence[int]) -> Floats:
        """Attention weights of some heads of one layer, recomputed from the layer's input.

        Args:
            hidden: hidden state `layer`, `[B, S, H]`, without any padding.
            layer: 0 … L−1.
            heads: which of 0 … N−1; at least one.

        Returns:
            `[B, heads, S, S]`, over keys; each row sums to 1.

        """
        feed = {"hidden_state": hidden}
        every_head = list(heads) == list(range(self.config.num_attention_heads))
        for name, tensor in self._head_parameters[layer].items():
            feed[name] = tensor if every_head else tensor[list(heads)]
        return self._attention.run(["attention"], feed)[0]


def _head_parameters(artifact: Artifact, names: Sequence[str]) -> list[dict[str, Floats]]:
    with safe_open(artifact.path(HEADS), framework="numpy") as file:
        return [
            {name: file.get_tensor(head_parameter_name(name, layer)) for name in names}
            for layer in range(artifact.manifest.config.num_hidden_layers)
        ]


def _session(artifact: Artifact, graph: str, device: Device) -> onnxruntime.InferenceSession:
    chosen = _detect() if device == "auto" else device
    provider = _PROVIDERS[chosen]
    if provider not in onnxruntime.get_available_providers():
        raise ProviderError(f"device {chosen}: this onnxruntime package has no {provider}")
    if chosen == "cuda":
        onnxruntime.preload_dlls()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_mem_pattern = False  # a pattern is kept for every shape ever seen
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(
            str(artifact.path(graph)), options, providers=[provider]
        )
    except Exception as error:  # onnxruntime's own exceptions share no base class
        reason = str(error).splitlines()[0]
        raise ModelError(f"ONNX Runtime cannot load {graph}: {reason}") from None
    in_use = session.get_providers()[0]
    if in_use != provider:
        raise ProviderError(
            f"device {chosen} was asked for, but ONNX Runtime runs on {in_use}: "
            "is there a GPU, its driver, and the CUDA and cuDNN libraries?"
        )
    return session


def _detect() -> Literal["cpu", "cuda"]:
    """Whether the NVIDIA driver is loaded and sees a device."""
    if _PROVIDERS["cuda"] not in onnxruntime.get_available_providers():
        return "cpu"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "cpu"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return "cpu"
    return "cuda" if count.value > 0 else "cpu"
