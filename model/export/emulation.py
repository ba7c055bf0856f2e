"""Emulation of an operator that ONNX Runtime has for GPUs alone, to verify its graphs on a CPU."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper, parser

from model.artifact.manifest import GRAPHS, Artifact
from model.runtimes.onnx_device import BoundRuntime
from model.runtimes.registry import session_of

OPERATOR = "PackedMultiHeadAttention"
_DOMAIN = "headscope.cpu"
"""Domain of the emulation: ONNX Runtime ignores a local function where it has a schema."""
_BIASED = f"Biased{OPERATOR}"
_FUNCTION = """
<domain: "headscope.cpu", opset_import: ["" : 20]>
NAME <num_heads, scale> (query, key, value, bias, token_offset, cu_seqlensBIAS_INPUT) => (output)
{
    heads = Constant <value_int: int = @num_heads> ()
    factor = Constant <value_float: float = @scale> ()
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    axis0 = Constant <value_ints = [0]> ()
    axis1 = Constant <value_ints = [1]> ()
    inner = Constant <value_ints = [1, 2]> ()
    all = Constant <value_ints = [-1]> ()
    beyond = Constant <value_ints = [2147483647]> ()
    lowest = Constant <value_float = -1e30> ()
    grid = Shape (token_offset)
    tokens = Shape <start = 0, end = 1> (query)
    features = Shape <start = 1, end = 2> (query)
    heads1 = Unsqueeze (heads, axis0)
    size = Div (features, heads1)
    by_head = Concat <axis = 0> (grid, heads1, size)
    cells = ReduceProd (grid)
    padded = Concat <axis = 0> (cells, features)
    offsets = Reshape (token_offset, all)
    real = Slice (offsets, axis0, tokens, axis0)
    places = Cast <to = 7> (real)
    index = Unsqueeze (places, axis1)
    nought32 = Constant <value_float = 0.0> ()
    nought = CastLike (nought32, query)
    empty = Expand (nought, padded)
    q0 = ScatterND (empty, index, query)
    k0 = ScatterND (empty, index, key)
    v0 = ScatterND (empty, index, value)
    q1 = Reshape (q0, by_head)
    k1 = Reshape (k0, by_head)
    v1 = Reshape (v0, by_head)
    q = Transpose <perm = [0, 2, 1, 3]> (q1)
    k = Transpose <perm = [0, 2, 3, 1]> (k1)
    v = Transpose <perm = [0, 2, 1, 3]> (v1)
    first = Slice (cu_seqlens, axis0, all, axis0)
    end = Slice (cu_seqlens, axis1, beyond, axis0)
    length32 = Sub (end, first)
    length = Cast <to = 7> (length32)
    lengths = Unsqueeze (length, axis1)
    longest = Gather (grid, one)
    columns = Range (zero, longest, one)
    is_key = Less (columns, lengths)
    mask = Unsqueeze (is_key, inner)
    products = MatMul (q, k)
    wide = Cast <to = 1> (products)
    scaled = Mul (wide, factor)
    scores = SCORES
    masked = Where (mask, scores, lowest)
    weights32 = Softmax <axis = -1> (masked)
    weights = CastLike (weights32, query)
    mixed = MatMul (weights, v)
    rows = Transpose <perm = [0, 2, 1, 3]> (mixed)
    flat = Reshape (rows, padded)
    output = Gather (flat, places)
}
"""


def emulate(artifact: Artifact, runtime: BoundRuntime) -> bool:
    """Give a runtime on a CPU an emulated graph of vectors; return whether it needed one."""
    if runtime.vectors or "vectors" not in artifact.manifest.signature:
        return False
    graph = emulated(artifact.path(GRAPHS["vectors"]))
    runtime.use_vectors(session_of(graph, artifact.folder))
    return True


def emulated(graph: Path) -> bytes:
    """Return a graph whose `OPERATOR` nodes are local functions of standard operators.

    Scores, softmax and sums are float32, as in the kernels for GPUs; the other operators have
    kernels for CPUs. Large weights stay in their files beside the graph.
    """
    model = onnx.load(graph, load_external_data=False)
    for node in model.graph.node:
        if node.op_type == OPERATOR:
            node.domain = _DOMAIN
            node.op_type = _BIASED if len(node.input) > 6 else OPERATOR
    added = "wide_bias = Cast <to = 1> (attention_bias)\n    scores = Add (scaled, wide_bias)"
    for name, bias, scores in (
        (OPERATOR, "", "scores = Identity (scaled)"),
        (_BIASED, ", attention_bias", added),
    ):
        text = _FUNCTION.replace("NAME", name).replace("BIAS_INPUT", bias)
        model.functions.append(parser.parse_function(text.replace("scores = SCORES", scores)))
    model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return model.SerializeToString()
