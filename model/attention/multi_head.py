"""Multi-head attention: a thin module around `attention_weights`.

Notation used in every docstring here:

    B  batch               N  heads
    T  query positions     S  key positions
        m  heads of keys and values, each shared by N / m consecutive heads of queries
    d  size of an input vector (d_q, d_k, d_v)
    p  size of a head's projection of it (p_q, p_k, p_v); p_o is the output's size

A mask is boolean and broadcasts to `[B, N, T, S]`; **True means: this query may attend to this
key**. A query without any allowed key gets weights of zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.attention.scores import SCORES
from model.attention.weights import (
    SCORE_PREFIX,
    AttentionRule,
    Heads,
    attention_weights,
    repeat_heads,
    split_heads,
)
from model.config.encoder import NormalizerName, ScoreName


def merge_heads(x: Tensor) -> Tensor:
    """Concatenate the heads: `[B, N, S, p]` → `[B, S, N·p]`."""
    return x.transpose(1, 2).flatten(2)


def ablated(context: Tensor, head_mask: Tensor | None) -> Tensor:
    """Multiply each head's output `[B, N, S, p]` by its factor in a head mask `[N]` or `[B, N]`."""
    return context if head_mask is None else context * head_mask[..., None, None]


@dataclass(frozen=True)
class AttentionSizes:
    """Sizes of multi-head attention: inputs d, one head's projections p, the output p_o."""

    num_heads: int
    d_q: int
    d_k: int
    d_v: int
    p_q: int
    p_k: int
    p_v: int
    p_o: int
    num_key_value_heads: int | None = None
    """Number m of key and value heads (Ainslie et al. 2023, https://arxiv.org/abs/2305.13245); N
    when None."""

    @classmethod
    def uniform(cls, hidden_size: int, num_heads: int) -> AttentionSizes:
        """Return sizes of self-attention with all d and p_o equal to H, all p to H / N."""
        h, p = hidden_size, hidden_size // num_heads
        return cls(num_heads, d_q=h, d_k=h, d_v=h, p_q=p, p_k=p, p_v=p, p_o=h)


class AttentionProjections(nn.Module):
    """Parameters of attention: W^q, W^k and W^v of N heads, W_o, and the score's parameters."""

    def __init__(
        self,
        sizes: AttentionSizes,
        score: ScoreName,
        *,
        bias: bool = True,
        output_bias: bool = True,
    ) -> None:
        """Allocate the parameters.

        Raises:
            ValueError: the score needs p_q = p_k and they differ.

        """
        super().__init__()
        if SCORES[score].same_size and sizes.p_q != sizes.p_k:
            raise ValueError(f"{score} needs p_q = p_k, not {sizes.p_q} and {sizes.p_k}")
        n = sizes.num_heads
        m = sizes.num_key_value_heads or n
        self.num_heads = n
        self.num_key_value_heads = m
        self.query = nn.Linear(sizes.d_q, n * sizes.p_q, bias=bias)
        self.key = nn.Linear(sizes.d_k, m * sizes.p_k, bias=bias)
        self.value = nn.Linear(sizes.d_v, m * sizes.p_v, bias=bias)
        self.output = nn.Linear(n * sizes.p_v, sizes.p_o, bias=output_bias)
        shapes = SCORES[score].parameter_shapes(n, sizes.p_q, sizes.p_k)
        self.score_parameters = nn.ParameterDict(
            {name: nn.init.normal_(torch.empty(shape), std=0.1) for name, shape in shapes.items()}
        )

    def value_heads(self, projected: Tensor) -> Tensor:
        """Split projected values into heads: `[B, S, m·p_v]` → `[B, N, S, p_v]`."""
        m = self.num_key_value_heads
        return repeat_heads(split_heads(projected, m), self.num_heads // m)

    def projection_parameters(self) -> dict[str, Tensor]:
        """Return the parameters of queries `[N, …]` and of keys `[m, …]`, as `Heads` names them."""
        projections = (
            ("query", self.query, self.num_heads),
            ("key", self.key, self.num_key_value_heads),
        )
        return {
            f"{role}_{name}": tensor.reshape(count, -1, *tensor.shape[1:])
            for role, projection, count in projections
            for name, tensor in projection.named_parameters()
        }

    def value_parameters(self) -> dict[str, Tensor]:
        """Return the parameters of the vectors that the heads add, beside the weights and states.

        They are `value_weight` `[m, p_v, d_v]`, `value_bias` `[m, p_v]` and `output_weight` `[N,
        p_o, p_v]`; see `some_heads`.
        """
        m, output = self.num_key_value_heads, self.output.weight
        parameters = {
            f"value_{name}": tensor.reshape(m, -1, *tensor.shape[1:])
            for name, tensor in self.value.named_parameters()
        }
        weight = output.reshape(len(output), self.num_heads, -1).transpose(0, 1)
        return {**parameters, "output_weight": weight}

    def named_score_parameters(self) -> dict[str, Tensor]:
        """Return the score's own parameters, `[N, …]` each, by their names in `Heads`."""
        return {f"{SCORE_PREFIX}{name}": tensor for name, tensor in self.score_parameters.items()}


class MultiHeadAttention(AttentionProjections):
    """Multi-head attention: heads f(W_i^q q, W_i^k k, W_i^v v), concatenated, projected by W_o.

    Vaswani et al. 2017, section 3.2.2 (https://arxiv.org/abs/1706.03762), with any score and
    normalizer for f.
    """

    def __init__(
        self,
        sizes: AttentionSizes,
        score: ScoreName = "scaled_dot_product",
        normalizer: NormalizerName = "softmax",
        *,
        bias: bool = True,
    ) -> None:
        """Allocate the projections and the score's own parameters."""
        super().__init__(sizes, score, bias=bias, output_bias=bias)
        self.rule = AttentionRule(score, normalizer)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        head_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the output `[B, T, p_o]` and the weights `[B, N, T, S]`.

        `query` `[B, T, d_q]` attends over `key` `[B, S, d_k]` and `value` `[B, S, d_v]`;
        self-attention if all three are the same. The boolean mask broadcasts to the weights; True =
        may attend. A row of weights sums to 1, or is zero if no key is allowed. `head_mask` `[N]`
        or `[B, N]` multiplies each head's output before the output projection (0 ablates the head;
        Michel et al. 2019, eq. 2, https://arxiv.org/abs/1905.10650), but not the weights.
        """
        weights = attention_weights(self.heads, query, key, mask)
        if mask is not None:
            weights = weights * mask.any(dim=-1, keepdim=True)
        context = weights @ self.value_heads(self.value(value))
        return self.output(merge_heads(ablated(context, head_mask))), weights

    @property
    def heads(self) -> Heads:
        """All N heads."""
        return Heads(
            self.num_heads,
            self.query,
            self.key,
            self.rule,
            self.named_score_parameters(),
            self.num_key_value_heads,
        )
