"""An artifact's graphs on ONNX Runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Literal

import onnxruntime

from model.artifact import ATTENTION_GRAPH, ENCODER_GRAPH, Artifact
from model.batch import Batch
from model.errors import ModelError
from model.runtime import Calls, Device, Floats, HeadParameters, ProviderError
from model.signature import hidden_state_name

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class OnnxRuntime:
    """ONNX Runtime; see `Runtime`."""

    def __init__(self, artifact: Artifact, device: Device = "cpu", threads: int = 1) -> None:
        """Load the graphs; on a CPU the encoder twice if there are several threads.

        Two threads in one call are slower than two calls of one thread each, so the session that
        every batch shares has one; the other has all, for a short one that is alone.

        Raises:
            ProviderError: CUDA was asked for and is not what the session runs on.
            ModelError: ONNX Runtime refuses a graph.

        """
        self.config = artifact.manifest.config
        self._inputs = [spec.name for spec in artifact.manifest.signature["encoder"].inputs]
        self._encoder = self._lone = _session(artifact, ENCODER_GRAPH, device)
        self._attention = _session(artifact, ATTENTION_GRAPH, device)
        self.provider: str = self._encoder.get_providers()[0]
        if threads > 1 and self.provider == _PROVIDERS["cpu"]:
            self._lone = _session(artifact, ENCODER_GRAPH, device, threads)
        self._calls = Calls()
        self._head_parameters = HeadParameters(artifact)

    def hidden_states(self, batch: Batch, layers: Sequence[int]) -> list[Floats]:
        """`[T, H]` a layer."""
        outputs = [hidden_state_name(layer) for layer in layers]
        feed = dict(zip(self._inputs, batch.inputs, strict=True))
        with self._calls.call(batch) as alone:
            return (self._lone if alone else self._encoder).run(outputs, feed)

    def attention(self, hidden: Floats, layer: int, heads: Sequence[int]) -> Floats:
        """`[heads, S, S]`."""
        feed = {"hidden_state": hidden[None], **self._head_parameters.feed(layer, heads)}
        return self._attention.run(["attention"], feed)[0][0]


def _session(
    artifact: Artifact, graph: str, device: Device, threads: int = 1
) -> onnxruntime.InferenceSession:
    chosen = _detect() if device == "auto" else device
    provider = _PROVIDERS[chosen]
    if provider not in onnxruntime.get_available_providers():
        raise ProviderError(f"device {chosen}: this onnxruntime package has no {provider}")
    if chosen == "cuda":
        onnxruntime.preload_dlls()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
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
