"""The service's distribution: its version, its extras, and the command that installs them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from service.system.machine import may_have_gpu

NAME = "headscope-server"
EXTRAS = {
    "onnxruntime": "cpu",
    "torch": "export",
    "onnx": "export",
    "onnxscript": "export",
    "openvino": "openvino",
    "opentelemetry": "tracing",
    "pyarrow": "files",
    "tiktoken": "tiktoken",
}
"""The extra that brings a top-level module; on a machine with a GPU, `gpu` brings ONNX Runtime."""
TRACING = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
"""The modules that traces are sent with."""
EXPORTER = ("onnxruntime", "torch", "onnx", "onnxscript")
"""The modules that an export or a verification imports."""


COMPUTING = ("onnxruntime", "onnxruntime-gpu", "openvino", "torch")
"""The distributions that compute."""


def version() -> str:
    """The installed version, such as `0.1.0`."""
    return importlib.metadata.version(NAME)


def require(purpose: str, *modules: str, also: Sequence[str] = ()) -> None:
    """Check that optional modules are installed, without importing them.

    Args:
        purpose: what needs them, as the message's subject.
        modules: dotted names, each below a key of `EXTRAS`.
        also: extras that the message names beside those of the missing modules.

    Raises:
        ValueError: some are missing; the message has the command that installs them.

    """
    missing = [module for module in modules if not is_installed(module)]
    if missing:
        extras = dict.fromkeys([*map(_extra_of, missing), *also])
        *others, last = missing
        named = f"{', '.join(others)} and {last}, which are" if others else f"{last}, which is"
        raise ValueError(f"{purpose} needs {named} not installed: {install_command(*extras)}")


def install_command(*extras: str) -> str:
    """Return the command that adds extras to this installation.

    It is `make setup`, which installs every extra, for a checkout with the `.venv` that make has
    made, and pip's for every other installation.
    """
    checkout = _checkout()
    if checkout is not None and Path(sys.prefix).resolve() == checkout / ".venv":
        return f"make -C {shlex.quote(str(checkout))} setup"
    return f"pip install '{NAME}[{','.join(extras)}]'"


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


def _extra_of(module: str) -> str:
    top = module.partition(".")[0]
    return "gpu" if top == "onnxruntime" and may_have_gpu() else EXTRAS[top]


def _checkout() -> Path | None:
    """The folder of an editable installation (PEP 610); None for any other."""
    record = importlib.metadata.distribution(NAME).read_text("direct_url.json")
    source = json.loads(record) if record else {}
    if not source.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlsplit(source["url"]).path)).resolve()
