"""The runtimes by name; importing this imports none of their libraries.

A runtime is a module with `load(artifact, resources)`, which gives its `Runtime`, and, where it has
more than one device, `choose(device)`, which refuses one that does not work here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from model.artifact.manifest import Artifact, Precision, RuntimeName, WeightBits
from model.errors import ProviderError
from model.runtimes.contract import Device, Resources, Runtime


@dataclass(frozen=True)
class RuntimeKind:
    """Description of a runtime, without its library."""

    title: str
    module: str
    precisions: tuple[Precision, ...]
    """Precisions that an artifact is exported for it in; a foreign graph comes as it is."""
    devices: tuple[Device, ...] = ("cpu",)
    three_axes: bool = False
    """Whether its encoder graph computes tokens as `[1, T, …]` instead of `[T, …]`:
    docs/decisions/0005-packed-texts.md."""


_ONNX = "model.runtimes.onnx"
RUNTIMES: Mapping[RuntimeName, RuntimeKind] = {
    "onnx": RuntimeKind(
        title="ONNX Runtime",
        module=_ONNX,
        precisions=("fp32", "fp16"),
        devices=("cpu", "cuda"),
    ),
    "openvino": RuntimeKind(
        title="OpenVINO",
        module="model.runtimes.openvino",
        precisions=("bf16", "int8"),
        three_axes=True,
    ),
    "foreign": RuntimeKind(title="a foreign ONNX graph", module=_ONNX, precisions=()),
    "pytorch": RuntimeKind(title="PyTorch", module="model.runtimes.pytorch", precisions=("fp32",)),
}
"""The first that computes a precision serves it best: docs/decisions/
0006-a-runtime-for-each-precision.md, and for fp16 0008-half-precision-on-a-gpu.md."""


_PROCESSOR = "model.runtimes.processor"


def runtime_of(precision: Precision) -> RuntimeName:
    """The runtime that an artifact of this precision is exported for."""
    return next(name for name, kind in RUNTIMES.items() if precision in kind.precisions)


def weight_bits(precision: Precision) -> WeightBits | None:
    """Bits of int8's weights that are exact on this processor; None in another precision.

    Raises:
        ModelError: the runtime is not installed.

    """
    if precision != "int8":
        return None
    return 7 if importlib.import_module(_PROCESSOR).saturates() else 8


def has_products(precision: Precision) -> bool:
    """Whether this processor has instructions for a precision that is meant to be fast on it.

    Raises:
        ModelError: the runtime is not installed.

    """
    if precision not in ("bf16", "int8"):
        return True
    processor = importlib.import_module(_PROCESSOR)
    own: bool = processor.computes_bfloat16() if precision == "bf16" else not processor.saturates()
    return own


def check_device(name: RuntimeName, device: Device) -> None:
    """Refuse a device that a runtime cannot use here, before any work is done.

    Raises:
        ProviderError: what is missing.

    """
    if device != "cuda":
        return
    kind = RUNTIMES[name]
    if device not in kind.devices:
        raise ProviderError(f"device {device}: {kind.title} runs on the CPU only")
    importlib.import_module(kind.module).choose(device)


def trial(graph: Path, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """All outputs of one call of a graph that is no artifact's yet, by name.

    Raises:
        ModelError: ONNX Runtime refuses the graph or the call, or the call does not end.

    """
    found: dict[str, NDArray[Any]] = importlib.import_module(_ONNX).trial(graph, feed)
    return found


def load_for_trial(artifact: Artifact) -> Runtime:
    """Load a foreign graph that may never end; a call that takes too long is a `ModelError`."""
    found: Runtime = importlib.import_module(_ONNX).load_for_trial(artifact)
    return found


def host_session(graph: Path) -> Any:
    """A graph of an artifact on ONNX Runtime, on the CPU whatever the runtime is.

    Raises:
        ModelError: ONNX Runtime refuses the graph.

    """
    return importlib.import_module(_ONNX).host_session(graph)


def load_runtime(
    artifact: Artifact,
    device: Device = "cpu",
    threads: int = 1,
    device_id: int = 0,
    device_memory_bytes: int | None = None,
    *,
    name: RuntimeName | None = None,
) -> Runtime:
    """Load an artifact on a runtime.

    Args:
        artifact: a checked artifact.
        device: as in `Resources`, like the next three.
        threads: calls at once.
        device_id: which of several CUDA devices.
        device_memory_bytes: the most that each graph may take on a CUDA device.
        name: of the runtime; that of the manifest when None.

    Raises:
        ProviderError: the device is not there, or is not what the runtime runs on.
        ModelError: the runtime is not installed, or cannot load the artifact.

    """
    name = name or artifact.manifest.runtime
    check_device(name, device)
    resources = Resources(device, threads, device_id, device_memory_bytes)
    runtime: Runtime = importlib.import_module(RUNTIMES[name].module).load(artifact, resources)
    return runtime
