"""Self-attention of an encoder's layer, with the families' extensions of multi-head attention.

Grouped key and value heads, norms of queries and keys, rotary positions, windows, and relative
positions. Notation as in `multi_head.py`; M tokens of the longest text, R relative positions of one
direction.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from model.attention.long_texts import (
    QUERIES_AT_ONCE,
    attend_in_chunks,
    attend_in_windows,
    query_chunks,
)
from model.attention.multi_head import AttentionProjections, AttentionSizes, ablated, merge_heads
from model.attention.positions import bucket_table, rotary_frequencies
from model.attention.weights import AttentionRule, Heads, attention_weights, split_heads
from model.config.encoder import EncoderConfig
from model.low_rank import low_rank_maps, mapped
from model.norms import RMSNorm
from model.packing import GridBatch, PackedBatch

Shared = Mapping[str, Tensor]
"""Relative-position parameters that all layers share: `distance_bias` `[N, 2M − 1]` and
`position_states` `[2R, H]`; often none."""
Relative = Mapping[str, Tensor]
"""Relative-position parameters of a layer's heads, `[N, …]` each, by their names in `Heads`: the
bias by distance, and projections of relative positions; often none."""
NO_WINDOW = 1e9
"""Window of a layer without one, if other layers have windows."""


def attention_rule(config: EncoderConfig) -> AttentionRule:
    """Return the attention rule of all heads of an encoder."""
    layout, buckets = config.attention, None
    if layout.disentangled and layout.position_buckets is not None:
        buckets = bucket_table(layout.position_buckets, config.max_position_embeddings)
    return AttentionRule(
        config.attention_score,
        config.attention_normalizer,
        query_scale=config.query_scale,
        causal=layout.causal,
        norm_eps=config.layer_norm_eps,
        input_norm=config.layer.norm,
        position_buckets=buckets,
    )


class SelfAttention(AttentionProjections):
    """Self-attention of packed texts, configured for one layer of an encoder."""

    def __init__(self, config: EncoderConfig, layer: int, rule: AttentionRule) -> None:
        """Allocate the parameters of layer 0 … L−1."""
        h, p, n = config.hidden_size, config.head_size, config.num_attention_heads
        m, layout = config.num_key_value_heads, config.attention
        sizes = AttentionSizes(n, h, h, h, p, p, p, h, num_key_value_heads=m)
        super().__init__(sizes, rule.score, bias=layout.bias, output_bias=layout.output_bias)
        self.rule = rule
        self.low_rank = low_rank_maps(
            config, query=(h, n * p), key=(h, m * p), value=(h, m * p), output=(n * p, h)
        )
        if layout.query_key_norm:
            self.query_norm = RMSNorm(p, config.layer_norm_eps)
            self.key_norm = RMSNorm(p, config.layer_norm_eps)
        if layout.disentangled and not layout.share_position_projections:
            if "c2p" in layout.disentangled:
                self.position_key = nn.Linear(h, n * p)
            if "p2c" in layout.disentangled:
                self.position_query = nn.Linear(h, n * p, bias=True)
        self._layout, self._head_size = layout, p
        self._chunks = query_chunks(config)
        # not parameters, so that neither the default device nor the precision changes them
        self._frequencies = self._window = self._local = None
        if layout.rotary_bases:
            scaling = layout.rotary_scalings[layer] if layout.rotary_scalings else None
            self._frequencies = rotary_frequencies(layout.rotary_bases[layer], p, scaling)
        if layout.windows:
            window = layout.windows[layer]
            if window is not None and window < QUERIES_AT_ONCE:
                self._local = window
            number = NO_WINDOW if window is None else float(window)
            self._window = torch.tensor(number, device="cpu")

    def attend(
        self, hidden: Tensor, batch: PackedBatch, head_mask: Tensor | None, relative: Relative
    ) -> Tensor:
        """Attend from each packed text over itself.

        `hidden` and the output are `[T, H]` or `[1, T, H]`, T the tokens of all texts. `head_mask`
        `[B, N]` multiplies each head's output before the output projection.
        """
        if isinstance(batch, GridBatch) and self._is_plain(relative):
            return self._attend_fused(hidden, batch, head_mask)
        heads = self._heads(relative, batch)
        query, key = heads.projected(hidden, hidden)
        chosen = batch.low_rank
        value = self.value_heads(batch.pad(mapped(self, "value", hidden, chosen)))
        if self._local is not None:
            context = attend_in_windows(heads, query, key, value, batch.mask, self._local)
        else:
            context = attend_in_chunks(heads, query, key, value, batch.mask, self._chunks)
        packed = batch.pack(merge_heads(ablated(context, head_mask)))
        together = packed.reshape(*hidden.shape[:-1], packed.shape[-1])
        return mapped(self, "output", together, chosen)

    def _is_plain(self, relative: Relative) -> bool:
        """Return whether weights are a softmax of q·k / √p alone, with a mask of keys alone."""
        rule, others = self.rule, {**relative, **self._own()}
        is_other = rule.causal or rule.position_buckets is not None or bool(others)
        return (rule.score, rule.normalizer) == ("scaled_dot_product", "softmax") and not is_other

    def _attend_fused(self, hidden: Tensor, batch: GridBatch, head_mask: Tensor | None) -> Tensor:
        """Attend as `attend`, by ONNX's operator, whose kernels on a GPU never store the weights.

        https://onnx.ai/onnx/operators/onnx__Attention.html
        """
        chosen, (texts, length, _) = batch.low_rank, hidden.shape
        query, key, value = (
            mapped(self, name, hidden, chosen) for name in ("query", "key", "value")
        )
        context, *_ = torch.onnx.ops.attention(
            query,
            key,
            value,
            batch.mask.expand(texts, 1, length, length),
            q_num_heads=self.num_heads,
            kv_num_heads=self.num_key_value_heads,
            scale=self.rule.query_scale / self._head_size**0.5,
        )  # [B, S, N · p]
        if head_mask is not None:
            by_head = context.reshape(texts, length, self.num_heads, self._head_size)
            context = (by_head * head_mask[:, None, :, None]).reshape(context.shape)
        return mapped(self, "output", context, chosen)

    def maps(self, hidden: Tensor, batch: PackedBatch, relative: Relative) -> Tensor:
        """Return the padded weights `[B, N, S, S]`; arguments as for `attend`."""
        return attention_weights(self._heads(relative, batch), hidden, hidden, batch.mask)

    def _heads(self, relative: Relative, batch: PackedBatch) -> Heads:
        """Return all N heads, which project packed texts into the grid."""
        return Heads(
            self.num_heads,
            lambda x: batch.pad(mapped(self, "query", x, batch.low_rank)),
            lambda x: batch.pad(mapped(self, "key", x, batch.low_rank)),
            self.rule,
            {**self._own(), **self.named_score_parameters(), **relative},
            self.num_key_value_heads,
        )

    def head_parameters(self, relative: Relative) -> dict[str, Tensor]:
        """Return the parameters that the N heads' maps depend on, beside the projections' input.

        They are `[N, …]` each, or `[m, …]` if consecutive heads share one; see `some_heads`.
        """
        common = {name: tensor[None] for name, tensor in self._own().items()}
        return {
            **self.projection_parameters(),
            **common,
            **self.named_score_parameters(),
            **relative,
        }

    def _own(self) -> dict[str, Tensor]:
        """Return the parameters that all heads of this layer share."""
        own: dict[str, Tensor] = {}
        if self._layout.query_key_norm:
            own |= {"query_norm": self.query_norm.weight, "key_norm": self.key_norm.weight}
        if self._frequencies is not None:
            own["frequencies"] = self._frequencies
        if self._window is not None:
            own["window"] = self._window
        return own

    def relative(self, shared: Shared) -> dict[str, Tensor]:
        """Return the relative-position parameters of the layer's heads, given the shared ones."""
        relative = {name: shared[name] for name in ("distance_bias",) if name in shared}
        for kind, name in (("c2p", "key"), ("p2c", "query")):
            if kind in self._layout.disentangled:
                together = self._layout.share_position_projections
                project = getattr(self, name if together else f"position_{name}")
                states = project(shared["position_states"][None])
                plural = {"key": "position_keys", "query": "position_queries"}[name]
                relative[plural] = split_heads(states, self.num_heads)[0]
        return relative
