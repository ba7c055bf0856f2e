"""Cache of graphs without weights, which makes the many exports of a test run cheap.

It depends on what its module computes and on its signature alone, so that exports of every model of
one kind share it, in all processes of a run.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx
from filelock import FileLock
from torch import Tensor, nn

from model.artifact.signature import GraphSignature
from model.attention.weights import AttentionRule
from model.config.encoder import EncoderConfig
from model.export import graphs
from model.export.graphs import Function
from model.export.to_onnx import to_onnx

OF_EMBEDDINGS = {
    *("model_type", "vocab_size", "max_position_embeddings", "type_vocab_size", "pad_token_id"),
    *("reads_segments", "embeddings", "num_hidden_layers", "adapters"),
}
"""Fields of a config that do not affect a layer."""


@functools.cache
def share_work(folder: Path) -> None:
    """Store each graph without weights in a folder, and load it from there."""
    folder.mkdir(exist_ok=True)

    def once(
        module: nn.Module, signature: GraphSignature, *, to_fuse: bool = False
    ) -> onnx.ModelProto:
        if not isinstance(module, Function) or [*module.children()]:
            return to_onnx(module, signature, to_fuse=to_fuse)
        path = folder / f"{_key(module, signature)}.onnx"
        with FileLock(f"{path}.lock"):
            if not path.exists():
                path.write_bytes(to_onnx(module, signature).SerializeToString())
        return onnx.load(path)

    graphs.to_onnx = once  # type: ignore[assignment]


def _key(module: Function, signature: GraphSignature) -> str:
    """Return the digest of everything that determines the graph of a function without weights."""
    compute: Any = module.compute
    parts = [compute.func.__name__, repr(signature), *map(_digest, compute.args)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _digest(argument: Any) -> str:
    if isinstance(argument, EncoderConfig):
        return argument.model_dump_json(exclude=OF_EMBEDDINGS)
    if isinstance(argument, AttentionRule):
        rule = asdict(argument).items()
        return repr({k: v.tolist() if isinstance(v, Tensor) else v for k, v in rule})
    return repr(argument)
