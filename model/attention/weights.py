"""Attention weights of chosen heads of one layer, given the layer's input: the single definition.

The forward pass, the exported attention graphs and PyTorch's recomputation of heads all use it.

Notation: B batch, T query positions, S key positions, n requested heads, d size of an input vector
(d_q, d_k), p size of a head's projection of it (p_q, p_k). Positions of queries and of keys are 0,
1, 2, … A mask is boolean and broadcasts to the scores; **True means: this key may be attended to**.
A row without any allowed key has finite weights, but no other guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from model.attention.positions import distances, rotate
from model.attention.scores import SCORES
from model.config.encoder import NormalizerName, NormName, ScoreName
from model.norms import normalize, rms_norm


def softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return exp(s) / Σ exp(s) over the last axis, over the keys that `mask` allows.

    `mask` is boolean, broadcasts to the scores `[..., S]`, and True where a key is allowed. A row
    of weights sums to 1.
    """
    if mask is not None:
        scores = scores + _bias(mask, scores.dtype)
    return torch.softmax(scores, dim=-1)


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 for allowed keys, and for others a number that makes their weight exactly 0.

    The bias has the mask's own shape, usually `[B, 1, 1, S]`, and is added to all scores at once.
    It is half of the lowest number, so that adding a score cannot overflow.
    """
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, zero, torch.finfo(dtype).min / 2)


def sparsemax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the Euclidean projection of `scores` onto the simplex, over the allowed keys.

    Martins & Astudillo 2016, Algorithm 1 (https://arxiv.org/abs/1602.02068): sort z₁ ≥ z₂ ≥ …; k is
    the largest index with 1 + k·z_k > Σ_{j≤k} z_j; τ = (Σ_{j≤k} z_j − 1) / k; the weights are max(z
    − τ, 0), many of them exactly 0. Scores, mask and weights are as for `softmax`.
    """
    dtype = scores.dtype
    scores = scores.to(torch.promote_types(dtype, torch.float32))  # sums drift in half precision
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    scores = scores - scores.amax(dim=-1, keepdim=True)
    ordered = scores.sort(dim=-1, descending=True).values
    cumulative = ordered.cumsum(dim=-1)
    rank = torch.ones_like(scores).cumsum(dim=-1)
    in_support = 1 + rank * ordered > cumulative
    size = in_support.sum(dim=-1, keepdim=True)
    threshold = (cumulative.gather(-1, size - 1) - 1) / size.to(scores.dtype)
    weights = (scores - threshold).clamp_min(0).to(dtype)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


NORMALIZERS: Mapping[NormalizerName, Callable[[Tensor, Tensor | None], Tensor]] = {
    "softmax": softmax,
    "sparsemax": sparsemax,
}

SCORE_PREFIX = "score_"
"""Prefix of a score's own parameters among a head's parameters."""
_PROJECTING = ("query_weight", "query_bias", "key_weight", "key_bias", "input_norm")


@dataclass(frozen=True)
class AttentionRule:
    """Settings that all heads of all layers share."""

    score: ScoreName = "scaled_dot_product"
    normalizer: NormalizerName = "softmax"
    query_scale: float = 1.0
    """Factor of queries, beside the score's own 1/√p."""
    causal: bool = False
    norm_eps: float = 1e-6
    """Epsilon of the norms of a layer's input and of each head's queries and keys."""
    input_norm: NormName = "layer_norm"
    """Kind of norm of a layer's input; applied if the heads have its weight."""
    position_buckets: Tensor | None = None
    """Index of the relative position of each distance −(M − 1) … M − 1, int64 `[2M − 1]`."""


@dataclass(frozen=True)
class Heads:
    """Heads of one layer, n of them: projections, further parameters, and the common rule.

    Optional parameters; each `[n, …]`, or without that axis if all n heads share it:

        score_…                             the score's own
        query_norm, key_norm       [p]      weights of the norms of queries and keys
        frequencies                [p/2]    frequencies of rotary positions, float32
        window                     []       largest distance of an allowed key
        distance_bias              [2M−1]   added to the score, by distance; always `[n, …]`
        position_keys, position_queries     of relative positions, `[2R, p]`; always `[n, …]`
    """

    count: int
    """Number of heads n."""
    query: Callable[[Tensor], Tensor]
    """Projection of the query states `[B, T, d_q]` → `[B, T, n·p_q]`."""
    key: Callable[[Tensor], Tensor]
    """Projection of the key states `[B, S, d_k]` → `[B, S, m·p_k]`, m a divisor of n."""
    rule: AttentionRule
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    key_count: int | None = None
    """Number of key heads m; n when None."""

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Tensor], rule: AttentionRule) -> Heads:
        """Return heads given by their own parameters alone, `[n, …]` each.

        They are `query_weight` `[n, p_q, d_q]`, `key_weight` `[n, p_k, d_k]`, optionally
        `query_bias` `[n, p_q]` and `key_bias` `[n, p_k]`, and the optional parameters of the class.
        If the layer normalises its input first: `input_norm_weight` and `input_norm_bias` `[n, d]`
        (equal in all heads), and `input_norm_applies` `[n]` if only some layers do so.
        """
        enter = partial(input_norm, parameters, rule)
        return cls(
            parameters["query_weight"].shape[0],
            projection(parameters, "query", enter),
            projection(parameters, "key", enter),
            rule,
            {name: p for name, p in parameters.items() if not name.startswith(_PROJECTING)},
        )

    def projected(self, query_states: Tensor, key_states: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries `[B, n, T, p_q]` and keys `[B, n, S, p_k]` as inputs of the score."""
        keys = self.key_count or self.count
        query = split_heads(self.query(query_states), self.count)
        key = split_heads(self.key(key_states), keys)
        if "query_norm" in self.parameters:
            query = rms_norm(query, self._rows("query_norm"), self.rule.norm_eps)
            key = rms_norm(key, self._rows("key_norm"), self.rule.norm_eps)
        if "frequencies" in self.parameters:
            frequencies = self.parameters["frequencies"]
            query, key = rotate(query, frequencies), rotate(key, frequencies)
        if self.rule.query_scale != 1.0:
            query = query * self.rule.query_scale
        return query, repeat_heads(key, self.count // keys)

    def weights(
        self,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None = None,
        *,
        distance: Tensor | None = None,
        in_float32: bool = False,
    ) -> Tensor:
        """Return weights `[…, n, T, S]` of projected `[…, n, T, p_q]` and `[…, n, S, p_k]`.

        `distance` is of each key from each query, int64 `[T, S]`; None if both begin at 0. `mask`
        and `in_float32` are as for `attention_weights`.
        """
        if distance is None:
            distance = distances(query.shape[-2], key.shape[-2], query.device)
        scores = self.scores(query, key, distance)
        for allowed in self._allowed(distance):
            mask = allowed if mask is None else mask & allowed
        if in_float32:
            scores = scores.float()
        return NORMALIZERS[self.rule.normalizer](scores, mask)

    def scores(self, query: Tensor, key: Tensor, distance: Tensor) -> Tensor:
        """Return the scores before masking and normalisation, with relative positions' terms.

        The arguments are as for `weights`, the result `[…, n, T, S]`.
        """
        own = {
            name.removeprefix(SCORE_PREFIX): tensor
            for name, tensor in self.parameters.items()
            if name.startswith(SCORE_PREFIX)
        }
        scores = SCORES[self.rule.score].function(query, key, **own)
        if "distance_bias" in self.parameters:
            scores = scores + _by_distance(self.parameters["distance_bias"], distance)
        if self.rule.position_buckets is not None:
            positions = _by_distance(self.rule.position_buckets, distance)
            scores = scores + self._position_scores(query, key, positions)
        return scores

    def _allowed(self, distance: Tensor) -> list[Tensor]:
        """Return boolean masks of allowed keys, `[T, S]` or `[n, T, S]` each."""
        allowed = []
        if self.rule.causal:
            allowed.append(distance <= 0)
        if "window" in self.parameters:
            allowed.append(distance.abs() <= self.parameters["window"][..., None, None])
        return allowed

    def _position_scores(self, query: Tensor, key: Tensor, positions: Tensor) -> Tensor:
        """Return (q · k_r + k · q_r) / √p of relative positions r `[T, S]`, `[B, n, T, S]`.

        He et al. 2021, eq. 4. Scores with each relative position are computed once, and gathered.
        """
        terms = []
        if "position_keys" in self.parameters:
            scores = query @ self.parameters["position_keys"].transpose(-2, -1)  # [B, n, T, 2R]
            terms.append(_gathered(scores, positions))
        if "position_queries" in self.parameters:
            queries = self.parameters["position_queries"] * self.rule.query_scale
            scores = key @ queries.transpose(-2, -1)  # [B, n, S, 2R]
            terms.append(_gathered(scores, positions.transpose(0, 1)).transpose(-2, -1))
        return sum(terms[1:], terms[0]) / query.shape[-1] ** 0.5

    def _rows(self, name: str) -> Tensor:
        """Return a parameter of a head's features, ready to broadcast to `[B, n, T, p]`."""
        return self.parameters[name].unsqueeze(-2)


def attention_weights(
    heads: Heads,
    query_states: Tensor,
    key_states: Tensor,
    mask: Tensor | None = None,
    *,
    in_float32: bool = False,
) -> Tensor:
    """Return normalize(score(W^q q, W^k k)) of each head.

    Query states `[B, T, d_q]`, key states `[B, S, d_k]` → `[B, n, T, S]`, over keys; a row sums to
    1. The boolean mask broadcasts to the result; True = may attend. A row without any allowed key
    is finite. `in_float32` normalises scores of a lower precision in float32.
    """
    query, key = heads.projected(query_states, key_states)
    return heads.weights(query, key, mask, in_float32=in_float32)


def some_heads(
    parameters: Mapping[str, Tensor], numbers: Sequence[int], count: int
) -> dict[str, Tensor]:
    """Return the parameters of heads by their indices, as `Heads.from_parameters` takes them.

    `parameters` are of all N heads of a layer, by name: `[N, …]` each, or `[m, …]` if N / m
    consecutive heads share one. The result is `[n, …]` each; not a copy if all heads are requested
    and share no parameter.
    """
    all_heads = list(numbers) == list(range(count))
    chosen = torch.tensor(list(numbers))
    return {
        name: p if all_heads and len(p) == count else p[chosen * len(p) // count]
        for name, p in parameters.items()
    }


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Split the last axis into heads: `[B, S, N·p]` → `[B, N, S, p]`."""
    return x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads).transpose(1, 2)


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """Repeat each head `times` times in a row: `[B, m, S, p]` → `[B, m·times, S, p]`."""
    return x if times == 1 else x.repeat_interleave(times, dim=1)


def _by_distance(table: Tensor, distance: Tensor) -> Tensor:
    """Gather a table `[…, 2M − 1]` at distances `[T, S]`, clamped for padded positions."""
    longest = (table.shape[-1] + 1) // 2
    places = (distance + longest - 1).clamp(0, 2 * longest - 2)
    gathered = torch.index_select(table, -1, places.flatten())
    return gathered.reshape(*table.shape[:-1], *distance.shape)


def _gathered(scores: Tensor, positions: Tensor) -> Tensor:
    """Gather `[B, n, T, 2R]` at positions `[T, S]` → `[B, n, T, S]`."""
    return scores.gather(-1, positions.expand(*scores.shape[:2], *positions.shape))


def input_norm(parameters: Mapping[str, Tensor], rule: AttentionRule, states: Tensor) -> Tensor:
    """Return a layer's input `[B, S, d]`, normalised if the layer normalises its input."""
    if "input_norm_weight" not in parameters:
        return states
    bias = parameters.get("input_norm_bias")
    weight = parameters["input_norm_weight"][0]
    normed = normalize(
        rule.input_norm, states, weight, None if bias is None else bias[0], rule.norm_eps
    )
    if "input_norm_applies" not in parameters:
        return normed
    return torch.where(parameters["input_norm_applies"][0] > 0, normed, states)


def projection(
    parameters: Mapping[str, Tensor], role: str, enter: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """Return the projection of n heads as one function, `[B, S, d]` → `[B, S, n·p]`.

    It applies `enter` to its input first.
    """
    weight = parameters[f"{role}_weight"].flatten(0, 1)
    bias = parameters.get(f"{role}_bias")
    flat = None if bias is None else bias.flatten()
    return lambda states: functional.linear(enter(states), weight, flat)


def value_products(parameters: Mapping[str, Tensor], rule: AttentionRule, states: Tensor) -> Tensor:
    """Return ⟨f_g(x_k), f_h(x_k)⟩ for all pairs of n heads: the single definition.

    A head h adds Σ_k a_h[q, k] · f_h(x_k) to a query, with f_h(x) = (x W_V^h + b_V^h) W_O^h; the
    bias of the output projection belongs to no head (Kobayashi et al. 2020,
    https://arxiv.org/abs/2004.10102, section 3). The products and the weights determine the norms
    of the vectors that a head adds, and that all heads add together.

    `parameters` are `value_weight` `[n, p, H]`, `value_bias` `[n, p]` if there is one, and
    `output_weight` `[n, H, p]`; with the norm's parameters, as in `Heads.from_parameters`, if the
    layer normalises its input first. The layer's input `[S, H]` → `[S, n, n]`.
    """
    enter = partial(input_norm, parameters, rule)
    weight = parameters["output_weight"]
    values = split_heads(projection(parameters, "value", enter)(states[None]), weight.shape[0])[0]
    added = (values @ weight.transpose(1, 2)).transpose(0, 1)  # [S, n, H]
    return added @ added.transpose(1, 2)
