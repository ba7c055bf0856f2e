"""The peers as servers, each in its fastest configuration on two cores, all in float32.

Infinity    its torch engine, batches of 8. Its default of 32 reaches 0.6 of that rate, since texts
            of different lengths are padded to one length; both are measured. Attention is PyTorch's
            fused kernel: BetterTransformer, which needs older versions of all packages, is no
            faster here. Telemetry is off.
LitServe    sentence-transformers behind LitServe, see `litserve_server`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.servers import Server
from benchmarks.peers.install import python_of

LITSERVE_SERVER = Path(__file__).with_name("litserve_server.py")


def infinity(name: str, checkpoint: Path, flags: Sequence[str] = ()) -> Server:
    """Return Infinity's server, which runs in its own environment."""
    python = str(python_of("infinity"))
    start = [python, "-m", "infinity_emb.cli", "v2", "--model-id", str(checkpoint), *flags]
    start += ["--engine", "torch", "--device", "cpu", "--no-bettertransformer"]
    start += ["--no-model-warmup", "--served-model-name", "model", "--host", "127.0.0.1"]
    return Server(
        name=name,
        precision="fp32",
        command=lambda port: [*start, "--port", str(port)],
        path="/embeddings",
        body=lambda text: {"input": [text], "model": "model"},
        vector=lambda reply: reply["data"][0]["embedding"],
    )


def litserve(name: str, checkpoint: Path) -> Server:
    """Return LitServe's server, which runs in its own environment."""
    start = [str(python_of("litserve")), str(LITSERVE_SERVER), str(checkpoint)]
    return Server(
        name=name,
        precision="fp32",
        command=lambda port: [*start, str(port)],
        path="/predict",
        body=lambda text: {"input": text},
        vector=lambda reply: reply["embedding"],
    )
