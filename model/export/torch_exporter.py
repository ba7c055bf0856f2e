"""PyTorch's exporter without redundant work: the same bytes in a third of the time.

For every graph, PyTorch builds its table of operators, traces the program twice, computes every
node again to promote types, tries every optimizer rule on every node, and caches shapes that are
never used again.

It traces a program a second time to decompose operators without an ONNX form, which takes longer
than capturing it. An encoder has few of them, and this module has an equivalent for each. Only a
program with any other such operator is traced again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import onnx_ir
import torch
from onnxscript.rewriter._rewrite_rule import ReplacementSubgraph, RewriteRule
from torch import fx
from torch._dynamo import config as dynamo
from torch.export import ExportedProgram
from torch.onnx._internal.exporter import _fx_passes, _registration
from torch.onnx._internal.fx.passes import type_promotion

_aten = torch.ops.aten
_CHECKS = {_aten._assert_scalar.default, _aten._assert_tensor_metadata.default}
"""Operators that the exporter itself drops."""
_traced_again = _fx_passes.decompose_with_registry


def lowered(program: ExportedProgram, registry: _registration.ONNXRegistry) -> ExportedProgram:
    """Return the program without operators that have no ONNX form; its nodes change in place."""
    graph = program.graph
    graph.eliminate_dead_code()
    for node in graph.nodes:
        if node.target in _SAME:
            _SAME[node.target](node)
        _put_known_sizes(node)
    if all(registry.is_registered(operator) for operator in _operators(graph)):
        return program
    return _traced_again(program, registry)


def _operators(graph: fx.Graph) -> Iterator[_registration.TorchOp]:
    """Yield the operators that nodes call, except checks and ONNX's own.

    In-place operators have no ONNX form.
    """
    for node in graph.nodes:
        of_onnx = getattr(node.target, "namespace", None) == "onnx"
        if node.op == "call_function" and node.target not in _CHECKS and not of_onnx:
            yield node.target


def _put_known_sizes(node: fx.Node) -> None:
    """Replace size nodes with a constant value for any axes, such as 3n / n, by their number."""

    def known(other: fx.Node) -> fx.node.Argument:
        value = other.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr.is_number:
            return int(value)
        return other

    node.args = fx.node.map_arg(node.args, known)


def _cast(node: fx.Node) -> None:
    """Replace `x.to(dtype)` by a copy, or by x itself if it has the type."""
    (tensor,) = node.all_input_nodes
    _, dtype, *others = node.args
    if others or node.kwargs:
        return
    if tensor.meta["val"].dtype == dtype:
        node.target, node.args = _aten.alias.default, (tensor,)
    else:
        node.target, node.args, node.kwargs = _aten._to_copy.default, (tensor,), {"dtype": dtype}


def _flatten(node: fx.Node) -> None:
    """Replace `x.flatten(…)` of a single axis by x itself."""
    (tensor,) = node.all_input_nodes
    if tensor.meta["val"].ndim == node.meta["val"].ndim > 0:
        node.target, node.args = _aten.alias.default, (tensor,)


def _reversed_difference(node: fx.Node) -> None:
    """Replace `number - x` by a subtraction of tensors."""
    tensor, number, *scale = node.args
    if not scale:
        node.target, node.args = _aten.sub.Tensor, (number, tensor)


def _square(node: fx.Node) -> None:
    """Replace `x.square()` by a power."""
    node.target, node.args = _aten.pow.Tensor_Scalar, (*node.args, 2)


def _and(node: fx.Node) -> None:
    """Replace `x & y` by a bitwise and."""
    node.target = _aten.bitwise_and.Tensor


_SAME: Mapping[object, Callable[[fx.Node], None]] = {
    _aten.to.dtype: _cast,
    _aten.flatten.using_ints: _flatten,
    _aten.rsub.Scalar: _reversed_difference,
    _aten.square.default: _square,
    _aten.__and__.Tensor: _and,
}
"""Operator → function that replaces it in a node by an equivalent one."""

_operator_table = functools.cache(_registration.ONNXRegistry.from_torchlib)
"""Cached constructor of PyTorch's table of ONNX operators."""
_try_rule = RewriteRule.try_rewrite
_Promotion = type_promotion._TypePromotionInterpreter


@contextlib.contextmanager
def without_spare_work() -> Iterator[None]:
    """Make `torch.onnx.export` do each of these steps once."""
    with (
        mock.patch.object(
            _registration.ONNXRegistry, "from_torchlib", staticmethod(_operator_table)
        ),
        mock.patch.object(_fx_passes, "decompose_with_registry", lowered),
        mock.patch.object(_Promotion, "run_node", _promoted),
        mock.patch.object(RewriteRule, "try_rewrite", _try_rule_of_operator),
        mock.patch.object(dynamo, "fake_tensor_cache_enabled", False),
    ):
        yield


def _promoted(interpreter: Any, node: fx.Node) -> object:
    """Return a node's value with promoted arguments; its value is known from tracing."""
    with interpreter._set_current_node(node):
        rule = type_promotion.get_type_promotion_rule(node, interpreter.type_promotion_table)
        if rule:
            interpreter._maybe_promote_node(node, rule)
    if node.op == "call_function" and "val" in node.meta:
        return node.meta["val"]
    return fx.Interpreter.run_node(interpreter, node)


def _try_rule_of_operator(
    rule: RewriteRule, model: onnx_ir.Model, graph: onnx_ir.Graph, node: onnx_ir.Node, **how: Any
) -> ReplacementSubgraph | None:
    """Try a rule, unless its pattern's first output is a different operator than the node."""
    first, *_ = rule._target_pattern.output_nodes
    if not first.op.matches(node.op_type):
        return None
    return _try_rule(rule, model, graph, node, **how)
