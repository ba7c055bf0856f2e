"""The peers as servers, each in its fastest configuration on two cores.

Infinity    its torch engine, and `optimum`, which optimizes an ONNX file itself; batches of 8. The
            default of 32 reaches 0.6 of that rate with torch, since texts of different lengths are
            padded to one length. Attention is PyTorch's fused kernel: BetterTransformer needs older
            versions of all packages, and is no faster here. Telemetry is off.
LitServe    sentence-transformers behind LitServe, see `litserve_server`.
llama.cpp   its own server; 16 texts at a time, in batches of 512 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.harness.calibrate import Precision
from benchmarks.harness.servers import Server
from benchmarks.harness.ways import OPEN_CONNECTIONS
from benchmarks.peers.in_process import converted
from benchmarks.peers.install import python_of
from benchmarks.peers.llama_cpp import gguf, llama_server

LITSERVE_SERVER = Path(__file__).with_name("litserve_server.py")


def infinity(name: str, checkpoint: Path, precision: Precision, engine: str) -> Server:
    """Return Infinity's server, which runs in its own environment."""
    folder, pooling = checkpoint, "auto"
    if engine == "optimum":  # its automatic pooling is the first token's state
        folder, pooling = converted(checkpoint) / f"infinity-{precision}", "mean"
    start = ["env", f"--chdir={folder}"]  # optimum finds no file by its whole path
    start += [str(python_of("infinity")), "-m", "infinity_emb.cli", "v2", "--model-id", "."]
    start += ["--engine", engine, "--device", "cpu", "--no-bettertransformer", "--batch-size", "8"]
    start += ["--pooling-method", pooling]
    start += ["--onnx-disable-optimize"]  # that fails with optimum-onnx; ONNX Runtime optimizes
    start += ["--no-model-warmup", "--served-model-name", "model", "--host", "127.0.0.1"]
    return Server(
        name=name,
        precision=precision,
        command=lambda port: [*start, "--port", str(port)],
        path="/embeddings",
        body=lambda text: {"input": [text], "model": "model"},
        vector=lambda reply: reply["data"][0]["embedding"],
    )


def litserve(name: str, checkpoint: Path) -> Server:
    """Return LitServe's server, which runs in its own environment."""
    start = [str(python_of("litserve")), "-P", str(LITSERVE_SERVER), str(checkpoint)]
    return Server(
        name=name,
        precision="fp32",
        command=lambda port: [*start, str(port)],
        path="/predict",
        body=lambda text: {"input": text},
        vector=lambda reply: reply["embedding"],
    )


def llama_cpp(name: str, checkpoint: Path, precision: Precision) -> Server:
    """Return llama.cpp's server; int8 is its Q8_0, of weights and activations."""
    start = [str(llama_server()), "--model", str(gguf(checkpoint, precision)), "--offline"]
    start += ["--embedding", "--pooling", "mean", "--threads", "2", "--no-webui"]
    start += ["--parallel", "16", "--ctx-size", "8192", "--ubatch-size", "512"]
    start += ["--threads-http", str(2 * OPEN_CONNECTIONS)]  # a connection occupies a thread
    return Server(
        name=name,
        precision=precision,
        command=lambda port: [*start, "--port", str(port)],
        path="/v1/embeddings",
        body=lambda text: {"input": text},
        vector=lambda reply: reply["data"][0]["embedding"],
    )


SERVERS: Mapping[str, Callable[[str, Path], Server]] = {
    "Infinity": lambda name, folder: infinity(name, folder, "fp32", "torch"),
    "Infinity optimum fp32": lambda name, folder: infinity(name, folder, "fp32", "optimum"),
    "Infinity optimum int8": lambda name, folder: infinity(name, folder, "int8", "optimum"),
    "LitServe": litserve,
    "llama.cpp fp32": lambda name, folder: llama_cpp(name, folder, "fp32"),
    "llama.cpp bf16": lambda name, folder: llama_cpp(name, folder, "bf16"),
    "llama.cpp int8": lambda name, folder: llama_cpp(name, folder, "int8"),
}
