"""Graph of pooled vectors on a GPU, built node by node from ONNX Runtime's fused operators.

It computes the usual request, one vector per text, in one run: texts end to end without padding,
`PackedMultiHeadAttention` over the ranges of the texts, one kernel for each sum with its norm, and
one for each bias with its activation. Hidden states, ablated heads, masked tokens and other
poolings come from `encoder.onnx`, whose large weights are the same bytes.

Three rewrites are exact, and are computed in float32 before the weights are rounded:

* a bias of the keys adds one number to all scores of a query, which softmax ignores: it is omitted
  (unless keys are rotated or normalised after it);
* a head's weights sum to 1, so the values' bias b_v adds W_o b_v to each output: it moves there
  (unless W_o depends on a token's adapter);
* the mean of a text's tokens is attention with equal scores: queries, keys and values are the last
  hidden state, with a scale so small that all scores round to 0. The kernel sums in float32.

The operators are described in
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.

Notation: T tokens of all texts, B texts, S tokens of the longest, H hidden size, N heads, p size of
a head, M tokens of the longest possible text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from model.artifact.signature import (
    PACKED_POOLINGS,
    Float,
    GraphSignature,
    PackedPooling,
    TensorSpec,
    specs,
)
from model.attention.self_attention import SelfAttention
from model.config.encoder import ActivationName, EncoderConfig
from model.encoder.encoder import Encoder
from model.encoder.layers import FeedForward
from model.low_rank import LowRank
from model.norms import RMSNorm

MICROSOFT = "com.microsoft"
OPSETS = {"": 20, MICROSOFT: 1}
IR_VERSION = 10
_ZERO_SCORES = 1e-20
"""Scale of attention with equal scores: the product of two half-precision states rounds to 0."""
_POOLED_HEAD = 128
"""Maximum size of a head of the attention that pools; sizes are multiples of 8."""
_MASKED = -60_000.0
"""Bias of a key outside of the window, in half precision's range."""

Name = str
"""Name of a tensor of the graph; empty for an input that is omitted."""


def obstacle(config: EncoderConfig, pooling: object) -> str | None:
    """Return why an encoder has no such graph, or None if it has one."""
    layout = config.attention
    reasons = {
        "its score is not q·k / √p": config.attention_score != "scaled_dot_product",
        "its weights are not a softmax": config.attention_normalizer != "softmax",
        "the operator has no causal form": layout.causal,
        "its scores combine content and relative position": bool(layout.disentangled),
        f"it pools by {pooling}": pooling not in PACKED_POOLINGS,
        "its hidden size is not a multiple of 8": config.hidden_size % 8 != 0,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def export_vectors(
    encoder: Encoder, pooling: PackedPooling, dtype: Float = "float16"
) -> onnx.ModelProto:
    """Return the graph of an encoder, for one pooling of its last hidden state.

    The encoder is in float32, without `obstacle`; a graph in float32 is for comparisons.
    """
    return _VectorsGraph(encoder, dtype).model(pooling)


def vectors_signature(config: EncoderConfig) -> GraphSignature:
    """Return the signature of `vectors.onnx`.

    It maps T tokens of B texts, end to end, to `vectors` `[n, H]` of the n texts whose
    `pooled_rows` are given, and to the same scaled to unit length. Ids are int32:

        input_ids         [T]
        token_type_ids    [T], with adapters
        embedding_rows    [T], row of a segment's and a position's embedding in their common table
        position_ids      [T], int64, with rotary positions
        pixels            [T, F], float32, of pictures
        columns           [S], 0 … S − 1 and at most M − 1, if scores depend on distances
        token_offset      [B, S], positions of the grid `[B, S]` with a token, then those without
        cu_seqlens        [B + 1], first token of each text, and T
        pooled_rows       [n], the first token of a text; the last one if it is pooled
    """
    layout, tokens, features = config.attention, ("tokens",), config.pixel_features
    vectors = ("vectors", config.hidden_size)
    has_rows = config.embeddings.positions != "none" or config.type_vocab_size > 0
    has_window = any(window is not None for window in layout.windows)
    by_distance = has_window or layout.alibi or layout.bias_buckets is not None
    return GraphSignature(
        inputs=(
            *specs("int32", input_ids=tokens),
            *(specs("int32", token_type_ids=tokens) if config.adapters else ()),
            *(specs("int32", embedding_rows=tokens) if has_rows else ()),
            *(specs("int64", position_ids=tokens) if layout.rotary_bases else ()),
            *(specs(pixels=(*tokens, features)) if features else ()),
            *(specs("int32", columns=("sequence",)) if by_distance else ()),
            *specs("int32", token_offset=("batch", "sequence"), cu_seqlens=("batch+1",)),
            *specs("int32", pooled_rows=("vectors",)),
        ),
        outputs=specs(vectors=vectors, unit_vectors=vectors),
    )


class _VectorsGraph:
    """Nodes and tensors of the graph of one encoder."""

    def __init__(self, encoder: Encoder, dtype: Float) -> None:
        self.encoder, self.config, self.dtype = encoder, encoder.config, dtype
        self.element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[Name, onnx.TensorProto] = {}
        self.chosen: Name = ""
        """`[T, F]`, 1 for the low-rank features of a token's segment."""

    def model(self, pooling: PackedPooling) -> onnx.ModelProto:
        """Return the whole graph."""
        signature = vectors_signature(self.config)
        with torch.no_grad():
            self._choose_low_rank()
            self._pool(self._layers(self._embedded()), pooling)
        inputs, outputs = _values(signature.inputs), _values(signature.outputs)
        graph = helper.make_graph(self.nodes, "vectors", inputs, outputs, [*self.tensors.values()])
        opsets = [helper.make_opsetid(*opset) for opset in OPSETS.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)

    def node(
        self,
        op: str,
        *inputs: Name,
        domain: str = "",
        out: Name = "",
        further: tuple[Name, ...] = (),
        **how: Any,
    ) -> Name:
        """Add a node, and return the name of its first output."""
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        out = out or f"{op}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, (out, *further), out, domain=domain, **how))
        return out

    def constant(
        self, name: Name, values: Tensor | NDArray[np.generic] | None, kind: str = ""
    ) -> Name:
        """Add a tensor once, and return its name; empty for None."""
        if values is None:
            return ""
        if name not in self.tensors:
            array = values.numpy() if isinstance(values, Tensor) else values
            whole = np.ascontiguousarray(array.astype(kind or self.dtype))
            self.tensors[name] = numpy_helper.from_array(whole, name)
        return name

    def axis(self, number: int) -> Name:
        """Return the name of an axis, 0 or 1."""
        return self.constant(("first_axis", "last_axis")[number], np.array([number]), "int64")

    def product(
        self, name: str, x: Name, weight: Tensor, low_rank: LowRank | None, *, biased: bool = False
    ) -> Name:
        """Return x W^T for a weight `[out, in]`, with the addition of each token's adapter.

        ONNX Runtime joins MatMul and Add to Gemm, which first copies the bias to every row. It
        does not join FusedMatMul.
        """
        how = ("FusedMatMul", MICROSOFT) if biased or low_rank else ("MatMul", "")
        y = self.node(how[0], x, self.constant(f"{name}.weight", weight.T), domain=how[1])
        if low_rank is None:
            return y
        down, up = low_rank.matrices
        features = self.node("MatMul", x, self.constant(f"{name}.down", down.T))
        return self._adapted(name, y, features, up)

    def _adapted(self, name: str, y: Name, features: Name, up: Tensor) -> Name:
        """Return y with the addition of each token's adapter, given all low-rank features."""
        features = self.node("Mul", features, self.chosen)
        return self.node("Add", y, self.node("MatMul", features, self.constant(f"{name}.up", up.T)))

    def mapped(
        self, name: str, x: Name, linear: nn.Linear, low_rank: LowRank | None = None
    ) -> Name:
        """Return a linear map of x with its bias."""
        y = self.product(name, x, linear.weight, low_rank, biased=linear.bias is not None)
        return self.plus(name, y, linear.bias)

    def plus(self, name: str, x: Name, bias: Tensor | None) -> Name:
        """Return x with a bias, if there is one."""
        return x if bias is None else self.node("Add", x, self.constant(f"{name}.bias", bias))

    def normed(self, name: str, x: Name, norm: nn.Module) -> Name:
        """Return a norm of x."""
        op, parameters, epsilon = self._norm(name, norm)
        return self.node(op, x, *parameters, axis=-1, epsilon=epsilon)

    def added(
        self, name: str, x: Name, skip: Name, norm: nn.Module, bias: Tensor | None = None
    ) -> tuple[Name, Name]:
        """Return the norm of x + skip + bias, and that sum itself."""
        if isinstance(norm, nn.Identity):
            total = self.node("Add", self.plus(f"{name}.skip", x, bias), skip)
            return total, total
        added = self.constant(f"{name}.skip_bias", bias)
        op, parameters, epsilon = self._norm(name, norm)
        total = f"Skip{op}.{len(self.nodes)}.sum"
        further, inputs = ("", "", total), (x, skip, *parameters, added)
        out = self.node(f"Skip{op}", *inputs, domain=MICROSOFT, further=further, epsilon=epsilon)
        return out, total

    def _norm(self, name: str, norm: nn.Module) -> tuple[str, tuple[Name, ...], float]:
        """Return the operator of a norm, its parameters and its epsilon."""
        if isinstance(norm, RMSNorm):
            weight = self.constant(f"{name}.weight", norm.weight)
            return "SimplifiedLayerNormalization", (weight,), norm.eps
        own = cast(nn.LayerNorm, norm)
        weight = self.constant(f"{name}.weight", own.weight)
        return "LayerNormalization", (weight, self.constant(f"{name}.bias", own.bias)), own.eps

    def _choose_low_rank(self) -> None:
        layout = self.config.adapters
        if layout is None:
            return
        owner = np.repeat(np.arange(1, layout.count + 1), layout.rank)
        types = self.node("Unsqueeze", "token_type_ids", self.axis(1))
        equal = self.node("Equal", types, self.constant("owner", owner, "int32"))
        self.chosen = self.node("Cast", equal, to=self.element)

    def _embedded(self) -> Name:
        """Return hidden state 0."""
        embeddings, layout = self.encoder.embeddings, self.config.embeddings
        x = self.node("Gather", self.constant("word", embeddings.word.weight), "input_ids")
        if embeddings.low_rank is not None:
            table, up = embeddings.low_rank.down.weight, embeddings.low_rank.up.weight
            features = self.node("Gather", self.constant("word.down", table), "input_ids")
            x = self._adapted("word", x, features, up)
        if embeddings.patch is not None:
            pixels = self.node("Cast", "pixels", to=self.element)
            patches = self.product("patch", pixels, embeddings.patch.weight, None, biased=True)
            x = self.node("Add", x, patches)
        if layout.scale != 1.0:
            x = self.node("Mul", x, self.constant("scale", np.array(layout.scale)))
        sums, rows = _embedding_table(self.encoder), ""
        if sums is not None:
            rows = self.node("Gather", self.constant("rows", sums), "embedding_rows")
        before = layout.projection == "before_norm"
        norm = embeddings.layer_norm
        if rows and norm is not None and not before:
            x, _ = self.added("embeddings", x, rows, norm)
            norm = None
        elif rows:
            x = self.node("Add", x, rows)
        if embeddings.projection is not None and before:
            x = self.mapped("projection", x, embeddings.projection)
        if norm is not None:
            x = self.normed("embeddings", x, norm)
        if embeddings.projection is not None and not before:
            x = self.mapped("projection", x, embeddings.projection)
        return x

    def _layers(self, x: Name) -> Name:
        """Return the last hidden state, given hidden state 0."""
        encoder, count = self.encoder, self.config.num_hidden_layers
        relative = encoder.relative()
        if self.config.layer.order == "post_norm":
            for number in range(count):
                x = self._post_norm(number, x, relative[number])
            return x
        first = encoder.layer(0)
        skips = isinstance(first.attention_norm, nn.Identity)
        normed = x if skips else self.normed("entering", x, first.attention_norm)
        for number in range(count):
            x, normed = self._pre_norm(number, x, normed, relative[number])
        return normed

    def _post_norm(self, number: int, x: Name, relative: Mapping[str, Tensor]) -> Name:
        """Return the layer's output."""
        layer, name = self.encoder.layer(number), self._name(number)
        attended, bias = self._attended(number, layer.attention, x, relative)
        x, _ = self.added(f"{name}.attention_norm", attended, x, layer.attention_norm, bias)
        fed, bias = self._fed(name, layer.feed_forward, x)
        x, _ = self.added(f"{name}.output_norm", fed, x, layer.output_norm, bias)
        return x

    def _pre_norm(
        self, number: int, x: Name, normed: Name, relative: Mapping[str, Tensor]
    ) -> tuple[Name, Name]:
        """Return the layer's output, and its norm that enters the next layer."""
        layer, name = self.encoder.layer(number), self._name(number)
        sandwich = self.config.layer.order == "sandwich_norm"
        attended, bias = self._attended(number, layer.attention, normed, relative)
        if sandwich:
            attended = self.plus(f"{name}.attended", attended, bias)
            attended, bias = self.normed(f"{name}.attended", attended, layer.attended_norm), None
        normed, x = self.added(
            f"{name}.feed_forward_norm", attended, x, layer.feed_forward_norm, bias
        )
        fed, bias = self._fed(name, layer.feed_forward, normed)
        if sandwich:
            fed = self.plus(f"{name}.fed", fed, bias)
            fed, bias = self.normed(f"{name}.fed", fed, layer.output_norm), None
        after = number + 1
        if after < self.config.num_hidden_layers:
            norm = self.encoder.layer(after).attention_norm
        else:
            norm = self.encoder.final_norm
        normed, x = self.added(f"layers.{number}.next_norm", fed, x, norm, bias)
        return x, normed

    def _name(self, number: int) -> str:
        """Return the name of a layer's parameters, which layers of a group share."""
        return f"layers.{self.config.layer_group(number)}"

    def _attended(
        self, number: int, attention: SelfAttention, x: Name, relative: Mapping[str, Tensor]
    ) -> tuple[Name, Tensor | None]:
        """Return the attention's output without its bias, and the bias."""
        config, name = self.config, f"{self._name(number)}.attention"
        low_rank = _low_rank(attention)
        heads, size = config.num_attention_heads, config.head_size
        shared = heads // config.num_key_value_heads
        key_weight, value_weight = (
            _by_head(linear.weight, size, shared) for linear in (attention.key, attention.value)
        )
        after = config.attention.query_key_norm or bool(config.attention.rotary_bases)
        query = self.mapped(f"{name}.query", x, attention.query, low_rank.get("query"))
        biased = after and attention.key.bias is not None
        key = self.product(f"{name}.key", x, key_weight, low_rank.get("key"), biased=biased)
        if biased:
            key = self.plus(f"{name}.key", key, _by_head(attention.key.bias, size, shared))
        value = self.product(f"{name}.value", x, value_weight, low_rank.get("value"))
        value_bias: Tensor | None = attention.value.bias
        if value_bias is not None:
            value_bias = _by_head(value_bias, size, shared)
            if low_rank:
                value = self.plus(f"{name}.value", value, value_bias)
        if config.attention.query_key_norm:
            query = self._normed_heads(f"{name}.query_norm", query, attention.query_norm)
            key = self._normed_heads(f"{name}.key_norm", key, attention.key_norm)
        frequencies = attention.head_parameters({}).get("frequencies")
        if frequencies is not None:
            query, key = (self._rotated(vectors, frequencies[0]) for vectors in (query, key))
        mixed = self.node(
            "PackedMultiHeadAttention",
            *(query, key, value, "", "token_offset", "cu_seqlens"),
            self._attention_bias(number, relative),
            domain=MICROSOFT,
            num_heads=heads,
            scale=config.query_scale / size**0.5,
        )
        output = attention.output
        bias = cast(Tensor | None, output.bias)
        if value_bias is not None and not low_rank:
            moved = output.weight @ value_bias
            bias = moved if bias is None else bias + moved
        return self.product(f"{name}.output", mixed, output.weight, low_rank.get("output")), bias

    def _normed_heads(self, name: str, x: Name, norm: RMSNorm) -> Name:
        """Return queries or keys `[T, N · p]` with each head normalised."""
        by_head = self.constant("by_head", np.array([-1, self.config.head_size]), "int64")
        size = self.config.num_attention_heads * self.config.head_size
        together = self.constant("together", np.array([-1, size]), "int64")
        rows = self.normed(name, self.node("Reshape", x, by_head), norm)
        return self.node("Reshape", rows, together)

    def _rotated(self, x: Name, frequencies: Tensor) -> Name:
        """Return queries or keys `[T, N · p]`, each token rotated by its position.

        Tokens are texts of one token for the operator, as it refuses texts longer than its table.
        """
        number = hash_of(frequencies)
        positions = torch.arange(self.config.max_position_embeddings, dtype=torch.float32)
        angles = positions[:, None] * frequencies
        axis = self.axis(1)
        rotated = self.node(
            "RotaryEmbedding",
            self.node("Unsqueeze", x, axis),
            self._once("positions", "Unsqueeze", "position_ids", axis),
            self.constant(f"cos.{number}", angles.cos()),
            self.constant(f"sin.{number}", angles.sin()),
            domain=MICROSOFT,
            num_heads=self.config.num_attention_heads,
        )
        return self.node("Squeeze", rotated, axis)

    def _once(self, out: Name, op: str, *inputs: Name) -> Name:
        if all(out not in node.output for node in self.nodes):
            self.node(op, *inputs, out=out)
        return out

    def _attention_bias(self, number: int, relative: Mapping[str, Tensor]) -> Name:
        """Return the scores' addends `[1, N, S, S]` of a layer; empty if there are none.

        They are the learned or linear bias of each distance, and `_MASKED` outside of the window.
        """
        layout = self.config.attention
        window = layout.windows[number] if layout.windows else None
        table = relative.get("distance_bias")
        if window is None and table is None:
            return ""
        longest = self.config.max_position_embeddings
        by_distance = torch.zeros(self.config.num_attention_heads, 2 * longest - 1)
        if table is not None:
            by_distance = by_distance + table
        if window is not None:
            distance = torch.arange(1 - longest, longest).abs()
            by_distance = by_distance.masked_fill(distance > window, _MASKED)
        number_of_table = hash_of(by_distance)
        key = f"bias.{number_of_table}"
        if all(f"{key}.heads" not in node.output for node in self.nodes):
            distances = self.node(
                "Sub",
                self._once("key_columns", "Unsqueeze", "columns", self.axis(0)),
                self._once("query_columns", "Unsqueeze", "columns", self.axis(1)),
            )
            middle = self.constant("middle", np.array(longest - 1), "int32")
            indices = self.node("Add", distances, middle)
            rows = self.node("Gather", self.constant(key, by_distance), indices, axis=1)
            self.node("Unsqueeze", rows, self.axis(0), out=f"{key}.heads")
        return f"{key}.heads"

    def _fed(self, name: str, part: FeedForward, x: Name) -> tuple[Name, Tensor | None]:
        """Return the feed-forward's output without its bias, and the bias."""
        name = f"{name}.feed_forward"
        low_rank = _low_rank(part)
        if part.gate is None:
            inner = self._activated(f"{name}.expand", x, part.expand, low_rank.get("expand"))
        else:
            gated = self._activated(f"{name}.gate", x, part.gate, low_rank.get("gate"))
            expanded = self.mapped(f"{name}.expand", x, part.expand, low_rank.get("expand"))
            inner = self.node("Mul", gated, expanded)
        contract = part.contract
        fed = self.product(f"{name}.contract", inner, contract.weight, low_rank.get("contract"))
        return fed, contract.bias

    def _activated(self, name: str, x: Name, linear: nn.Linear, low_rank: LowRank | None) -> Name:
        """Return the activation of a linear map."""
        op, domain, fused, how = _ACTIVATIONS[self.config.hidden_act]
        if linear.bias is None or not fused:
            return self.node(op, self.mapped(name, x, linear, low_rank), domain=domain, **how)
        y = self.product(name, x, linear.weight, low_rank)
        bias = self.constant(f"{name}.bias", linear.bias)
        return self.node(fused, y, bias, domain=MICROSOFT)

    def _pool(self, x: Name, pooling: PackedPooling) -> None:
        """Add the outputs, given the last hidden state."""
        size = self.config.hidden_size
        if pooling == "mean":
            head = next(d for d in range(_POOLED_HEAD, 0, -8) if size % d == 0)
            x = self.node(
                "PackedMultiHeadAttention",
                *(x, x, x, "", "token_offset", "cu_seqlens"),
                domain=MICROSOFT,
                num_heads=size // head,
                scale=_ZERO_SCORES,
            )
        rows = self.node("Gather", x, "pooled_rows")
        vectors = self.node("Cast", rows, out="vectors", to=TensorProto.FLOAT)
        # a unit vector is a root-mean-square norm with weights 1 / √H
        root = self.constant("unit", np.full(size, size**-0.5), "float32")
        self.node(
            "SimplifiedLayerNormalization",
            *(vectors, root),
            out="unit_vectors",
            axis=-1,
            epsilon=1e-24,
        )


_ACTIVATIONS: Mapping[ActivationName, tuple[str, str, str, dict[str, Any]]] = {
    **dict.fromkeys(("gelu", "gelu_python"), ("Gelu", MICROSOFT, "BiasGelu", {})),
    **dict.fromkeys(
        ("gelu_fast", "gelu_new", "gelu_pytorch_tanh"), ("FastGelu", MICROSOFT, "FastGelu", {})
    ),
    "quick_gelu": ("QuickGelu", MICROSOFT, "", {"alpha": 1.702}),
    **dict.fromkeys(("silu", "swish"), ("QuickGelu", MICROSOFT, "", {"alpha": 1.0})),
    "relu": ("Relu", "", "", {}),
    "tanh": ("Tanh", "", "", {}),
}
"""Activation → its operator, the operator's domain, its form with a bias, and its attributes."""


def _values(specs: Sequence[TensorSpec]) -> list[onnx.ValueInfoProto]:
    """Return a graph's inputs or outputs."""
    return [
        helper.make_tensor_value_info(
            spec.name, helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)), list(spec.axes)
        )
        for spec in specs
    ]


def _low_rank(module: SelfAttention | FeedForward) -> dict[str, LowRank]:
    """Return the adapters of a module's linear maps by name; empty without adapters."""
    return {} if module.low_rank is None else {**cast(Any, module.low_rank)}


def _by_head(parameter: Tensor, size: int, shared: int) -> Tensor:
    """Return a parameter `[m · p, …]` of key or value heads, repeated for each query head."""
    heads = parameter.reshape(-1, size, *parameter.shape[1:])
    return heads.repeat_interleave(shared, dim=0).flatten(0, 1)


def _embedding_table(encoder: Encoder) -> Tensor | None:
    """Return the sums of segment and position embeddings: row = segment · positions + position."""
    embeddings = encoder.embeddings
    positions, segments = embeddings.position, embeddings.token_type
    if segments is None:
        return None if positions is None else positions.weight
    own = segments.weight if embeddings.reads_segments else segments.weight[:1]
    return own if positions is None else (own[:, None] + positions.weight).flatten(0, 1)


def hash_of(values: Tensor) -> str:
    """Return a short name of a tensor's values."""
    return hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()[:8]
