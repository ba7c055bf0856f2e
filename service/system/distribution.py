"""The service's distribution: its version, and the packages that only its extras bring."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util

NAME = "headscope-server"
EXTRAS = {
    "torch": "export",
    "onnx": "export",
    "onnxscript": "export",
    "openvino": "openvino",
    "opentelemetry": "tracing",
    "pyarrow": "files",
    "tiktoken": "tiktoken",
}
"""The extra that brings a top-level module."""
TRACING = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
"""The modules that traces are sent with."""
EXPORTER = ("torch", "onnx", "onnxscript")
"""The modules that an export or a verification imports."""


COMPUTING = ("onnxruntime", "onnxruntime-gpu", "openvino", "torch")
"""The distributions that compute."""


def version() -> str:
    """The installed version, such as `0.1.0`."""
    return importlib.metadata.version(NAME)


def require(purpose: str, *modules: str) -> None:
    """Check that optional modules are installed, without importing them.

    Args:
        purpose: what needs them, as the message's subject.
        modules: dotted names, each below a key of `EXTRAS`.

    Raises:
        ValueError: one is missing; the message names the extra that brings it.

    """
    for module in modules:
        if not is_installed(module):
            extra = EXTRAS[module.partition(".")[0]]
            raise ValueError(
                f"{purpose} needs {module}, which is not installed: pip install '{NAME}[{extra}]'"
            )


def is_installed(module: str) -> bool:
    """Whether a module can be imported; it is not."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


def versions() -> list[str]:
    """Lines of our name and version and of what computes, where it is installed."""
    found = [f"{NAME} {version()}"]
    for name in COMPUTING:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return found
