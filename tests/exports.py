"""Cache of graphs without weights, which makes the many exports of a test run cheap.

It depends on what its module computes and on its signature alone, so that exports of every model of
one kind share it, in all processes of a run.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import asdict
from pathlib import Path

import onnx
from filelock import FileLock
from torch import Tensor, nn

from model.artifact.signature import GraphSignature
from model.export import decoder_graphs, graphs
from model.export.graphs import DecomposedLayer, DecomposedValues, HeadScores, ValueProducts
from model.export.to_onnx import to_onnx

OfHeads = graphs.HeadWeights | DecomposedLayer | HeadScores | ValueProducts
OfLayer = DecomposedLayer | DecomposedValues
Weightless = OfHeads | OfLayer | graphs.DevicePooling
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
        if not isinstance(module, Weightless):
            return to_onnx(module, signature, to_fuse=to_fuse)
        path = folder / f"{_key(module, signature)}.onnx"
        with FileLock(f"{path}.lock"):
            if not path.exists():
                path.write_bytes(to_onnx(module, signature).SerializeToString())
        return onnx.load(path)

    for exporting in (graphs, decoder_graphs):
        exporting.to_onnx = once  # type: ignore[attr-defined]


def _key(module: nn.Module, signature: GraphSignature) -> str:
    """Return the digest of everything that determines the graph of a module without weights."""
    parts = [type(module).__name__, repr(signature)]
    if isinstance(module, OfLayer):
        parts.append(module.config.model_dump_json(exclude=OF_EMBEDDINGS))
    if isinstance(module, OfHeads):
        rule = {
            name: value.tolist() if isinstance(value, Tensor) else value
            for name, value in asdict(module.rule).items()
        }
        parts += [repr(rule), repr(module.parameter_names)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
