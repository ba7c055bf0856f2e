"""Registry of runtimes by name; importing it imports none of their libraries.

A runtime is a module with `load(artifact, resources)`, which returns a `Runtime`, and, if it has
more than one device, `choose(device)`, which raises an error for a device that does not work here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from model.artifact.manifest import Artifact, RuntimeName
from model.artifact.vectors import TextVectors
from model.config.precision import Precision, WeightBits
from model.errors import ProviderError
from model.runtimes.contract import Device, Resources, Runtime, Session


@dataclass(frozen=True)
class RuntimeKind:
    """Description of a runtime, without its library."""

    title: str
    module: str
    libraries: tuple[str, ...]
    """Modules that it imports."""
    precisions: tuple[Precision, ...]
    """Precisions that an artifact is exported in for this runtime."""
    devices: tuple[Device, ...] = ("cpu",)
    three_axes: bool = False
    """Whether its encoder graph computes tokens as `[1, T, …]` instead of `[T, …]`:
    docs/decisions/0005-packed-texts.md."""


_ONNX = "model.runtimes.onnx"
RUNTIMES: Mapping[RuntimeName, RuntimeKind] = {
    "onnx": RuntimeKind(
        title="ONNX Runtime",
        module=_ONNX,
        libraries=("onnxruntime",),
        precisions=("fp32", "fp16"),
        devices=("cpu", "cuda"),
    ),
    "openvino": RuntimeKind(
        title="OpenVINO",
        module="model.runtimes.openvino",
        libraries=("onnxruntime", "openvino"),
        precisions=("bf16", "int8"),
        three_axes=True,
    ),
    "static": RuntimeKind(
        title="a static embedding",
        module="model.runtimes.static",
        libraries=(),
        precisions=("fp32",),
    ),
    "pytorch": RuntimeKind(
        title="PyTorch",
        module="model.runtimes.pytorch",
        libraries=("torch",),
        precisions=("fp32",),
    ),
}
"""Runtimes by name. The first that computes a precision is the best one for it:
docs/decisions/0006-a-runtime-for-each-precision.md, and for fp16
0008-half-precision-on-a-gpu.md."""


_PROCESSOR = "model.runtimes.openvino"


def runtime_of(precision: Precision) -> RuntimeName:
    """Return the runtime that an artifact of this precision is exported for."""
    return next(name for name, kind in RUNTIMES.items() if precision in kind.precisions)


def weight_bits(precision: Precision) -> WeightBits | None:
    """Return the bits of int8's weights that are exact on this processor; None for others.

    Raises:
        ModelError: the runtime is not installed.

    """
    if precision != "int8":
        return None
    return 7 if importlib.import_module(_PROCESSOR).saturates() else 8


def has_products(precision: Precision) -> bool:
    """Return whether this processor has instructions for a precision meant to be fast on it.

    Raises:
        ModelError: the runtime is not installed.

    """
    if precision not in ("bf16", "int8"):
        return True
    processor = importlib.import_module(_PROCESSOR)
    own: bool = processor.computes_bfloat16() if precision == "bf16" else not processor.saturates()
    return own


def check_device(name: RuntimeName, device: Device) -> None:
    """Raise an error for a device that a runtime cannot use here, before any work is done.

    Raises:
        ProviderError: the message names what is missing.

    """
    if device != "cuda":
        return
    kind = RUNTIMES[name]
    if device not in kind.devices:
        raise ProviderError(f"device {device}: {kind.title} runs on the CPU only")
    importlib.import_module(kind.module).choose(device)


def host_session(graph: Path) -> Session:
    """Load a graph of an artifact on ONNX Runtime, on the CPU whatever the runtime."""
    session: Session = importlib.import_module(_ONNX).host_session(graph)
    return session


def session_of(graph: bytes, folder: Path) -> Session:
    """Load a graph whose large weights are in a folder, on ONNX Runtime and the CPU."""
    session: Session = importlib.import_module(_ONNX).session_of(graph, folder)
    return session


def load_runtime(
    artifact: Artifact, resources: Resources | None = None, *, name: RuntimeName | None = None
) -> Runtime:
    """Load a checked artifact, by default on the manifest's runtime, on one thread of the CPU.

    Raises:
        ProviderError: the device is missing, or the runtime does not support it.
        ModelError: the runtime is not installed, or cannot load the artifact.

    """
    name, resources = name or artifact.manifest.runtime, resources or Resources()
    if resources.cuda_graphs and resources.device == "cpu":
        raise ProviderError("--cuda-graphs is for CUDA, and the device is cpu")
    check_device(name, "cuda" if resources.cuda_graphs else resources.device)
    runtime: Runtime = importlib.import_module(RUNTIMES[name].module).load(artifact, resources)
    if artifact.manifest.sentence.pooling == "attention":
        runtime.pool = TextVectors.of(artifact).pool
    return runtime
