"""llama.cpp's server and weights, built from the source in the package llama-cpp-python."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from pathlib import Path

from benchmarks.harness.calibrate import Precision
from benchmarks.peers.in_process import converted
from benchmarks.peers.install import ENVIRONMENTS, python_of, run

NAME, VERSION = "llama-cpp-python", "0.3.36"
"""Package and its version, which brings llama.cpp's commit 0c1e57098."""
TYPES = {"fp32": "F32", "bf16": "BF16", "int8": "Q8_0"}
ROOT = ENVIRONMENTS / "llama_cpp"
SOURCE = ROOT / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp"
BINARIES = ROOT / "build" / "bin"
OPTIONS = ("CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "BUILD_SHARED_LIBS=OFF")
OFF = ("LLAMA_OPENSSL", "LLAMA_USE_PREBUILT_UI", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES")


def llama_server() -> Path:
    """Return the server, which is built for this processor if it is missing.

    Raises:
        InstallError: pip, CMake or the compiler fails.

    """
    if not (BINARIES / "llama-server").exists():
        ROOT.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", NAME]
        run([*pip, "--dest", str(ROOT), f"{NAME}=={VERSION}"])
        with tarfile.open(ROOT / f"llama_cpp_python-{VERSION}.tar.gz") as archive:
            archive.extractall(ROOT, filter="data")
        options = [f"-D{option}" for option in (*OPTIONS, *(f"{name}=OFF" for name in OFF))]
        build = str(ROOT / "build")
        run(["cmake", "-S", str(SOURCE), "-B", build, *options])
        targets = ["llama-server", "llama-quantize"]
        run(["cmake", "--build", build, "--parallel", str(os.cpu_count()), "--target", *targets])
    return BINARIES / "llama-server"


def gguf(checkpoint: Path, precision: Precision) -> Path:
    """Return the checkpoint's weights in llama.cpp's format.

    Raises:
        InstallError: llama.cpp does not know the checkpoint's architecture.

    """
    folder = converted(checkpoint)
    exact, weights = folder / "F32.gguf", folder / f"{TYPES[precision]}.gguf"
    if not exact.exists():
        part = exact.with_suffix(".part")
        script = [str(python_of("sentence_transformers")), str(SOURCE / "convert_hf_to_gguf.py")]
        run([*script, str(checkpoint), "--outtype", "f32", "--outfile", str(part)])
        shutil.move(part, exact)
    if not weights.exists():
        run([str(BINARIES / "llama-quantize"), str(exact), str(weights), TYPES[precision]])
    return weights
