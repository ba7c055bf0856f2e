"""Distribution of the service: its version, its extras, and the command that installs them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import platform
import shlex
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from sysconfig import get_platform
from urllib.parse import unquote, urlsplit

from service.system.machine import may_have_gpu

NAME, _WHEEL = "headscope-server", "-py3-none-any.whl"
_PROJECT_FILE = Path(__file__).parents[2] / "pyproject.toml"
"""Description of the project in a checkout; wheels do not have it."""
EXTRAS = {
    "onnxruntime": "cpu",
    "torch": "export",
    "onnx": "export",
    "onnxscript": "export",
    "transformers": "export",
    "openvino": "openvino",
    "opentelemetry": "tracing",
    "headscope": "client",
    "pyarrow": "files",
    "tiktoken": "tiktoken",
    "PIL": "images",
    "httpx": "images",
}
"""Top-level module → extra that installs it; with a GPU, `gpu` installs ONNX Runtime."""
X86_64 = ("x86_64", "AMD64")
"""Names of the machine for which onnxruntime-gpu has wheels, on Linux and Windows."""
TRACING = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
"""Modules that sending traces requires."""
EXPORTER = ("onnxruntime", "torch", "onnx", "onnxscript", "transformers")
"""Modules that an export or a verification imports."""
LIBRARIES = (
    *("headscope", "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "openvino"),
    *("tokenizers", "torch", "transformers"),
)
"""Distributions that compute, tokenise or export, and the client; `--version` lists them."""


def version() -> str:
    """Return the version of the installed package or of a checkout on the path, such as `0.3.0`."""
    try:
        return importlib.metadata.version(NAME)
    except importlib.metadata.PackageNotFoundError:
        project = tomllib.loads(_PROJECT_FILE.read_text(encoding="utf-8"))["project"]
        return str(project["version"])


def require(purpose: str, *modules: str, also: Sequence[str] = ()) -> None:
    """Check that optional modules are installed, without importing them.

    Each module is below a key of `EXTRAS`. `purpose` is the subject of the error message, and
    `also` has further extras for its command.

    Raises:
        ValueError: a module is missing; the message has the command that installs it, or says
            that none does on this platform.

    """
    missing = [module for module in modules if not is_installed(module)]
    machine = (sys.platform, platform.machine())
    if "openvino" in missing and machine != ("linux", "x86_64"):
        raise ValueError(
            f"{purpose} needs openvino, which the extra `openvino` installs on Linux x86_64 alone, "
            f"and this is {' '.join(machine)}: use fp32, or another machine"
        )
    if missing:
        extras = dict.fromkeys([*map(_extra_of, missing), *also])
        *others, last = missing
        named = f"{', '.join(others)} and {last}, which are" if others else f"{last}, which is"
        raise ValueError(f"{purpose} needs {named} not installed: {install_command(*extras)}")


def install_command(*extras: str) -> str:
    """Return the command that adds extras to this installation.

    In a checkout with the `.venv` of make, it is `make setup`, which installs every extra.
    Otherwise it is a pip command with the checkout or with the release's wheels, as no index has
    Headscope: packages of its names there would be somebody else's.
    """
    checkout, listed = _checkout(), ",".join(extras)
    if checkout is not None and Path(sys.prefix).resolve() == checkout / ".venv":
        return f"make -C {shlex.quote(str(checkout))} setup"
    of_client = f"headscope-{version()}{_WHEEL} " if "client" in extras else ""
    if checkout is not None:
        client = f"--editable {shlex.quote(str(checkout / 'clients' / 'python'))} "
        own = shlex.quote(f"{checkout}[{listed}]")
        return f"pip install {client if of_client else ''}--editable {own}"
    return f"pip install {of_client}'{NAME.replace('-', '_')}-{version()}{_WHEEL}[{listed}]'"


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def versions() -> list[str]:
    """Return lines with the names and versions of the service, Python and installed `LIBRARIES`."""
    lines = [f"{NAME} {version()}", f"python {platform.python_version()} ({get_platform()})"]
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            lines.append(f"{name} {importlib.metadata.version(name)}")
    return lines


def _extra_of(module: str) -> str:
    top = module.partition(".")[0]
    gpu = top == "onnxruntime" and may_have_gpu() and platform.machine() in X86_64
    return "gpu" if gpu else EXTRAS[top]


def _checkout() -> Path | None:
    """Return the folder of an editable installation (PEP 610); None for others, and for none."""
    try:
        record = importlib.metadata.distribution(NAME).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    source = json.loads(record) if record else {}
    if not source.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlsplit(source["url"]).path)).resolve()
