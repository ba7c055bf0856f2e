"""Attention weights of some heads of one layer, from what enters the layer: the one definition.

The forward pass, the exported attention graphs and a head that PyTorch recomputes all use it.

Notation: B batch, T query positions, S key positions, n heads asked for, d size of an input
vector (d_q, d_k), p size of a head's projection of it (p_q, p_k). Positions are 0, 1, 2, … of both
queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from model.attention.normalizers import NORMALIZERS
from model.attention.positions import distances, rotate
from model.attention.scores import SCORES
from model.config.encoder import NormalizerName, NormName, ScoreName
from model.norms import normalize, rms_norm

SCORE_PREFIX = "score_"
"""Of a score's own parameters, among a head's."""
_PROJECTING = ("query_weight", "query_bias", "key_weight", "key_bias", "input_norm")


@dataclass(frozen=True)
class AttentionRule:
    """What is the same in all heads of all layers."""

    score: ScoreName = "scaled_dot_product"
    normalizer: NormalizerName = "softmax"
    query_scale: float = 1.0
    """What queries are multiplied by, beside the score's own 1/√p."""
    causal: bool = False
    norm_eps: float = 1e-6
    """Of the norms of a layer's input and of each head's queries and keys."""
    input_norm: NormName = "layer_norm"
    """Kind of the norm of a layer's input, where heads have its weight."""
    position_buckets: Tensor | None = None
    """The number of the relative position of each distance, int64 `[2M − 1]`, of −(M − 1) …
    M − 1."""


@dataclass(frozen=True)
class Heads:
    """n heads of one layer: their projections, their other parameters, and the rule of all.

    Parameters, where a head has them; each `[n, …]`, or without that axis what all n share:

        score_…                             the score's own
        query_norm, key_norm       [p]      weights of the norm of queries and keys
        frequencies                [p/2]    of rotary positions, float32
        window                     []       the largest distance of a key that is looked at
        distance_bias              [2M−1]   added to the score, by distance; always `[n, …]`
        position_keys, position_queries     of relative positions, `[2R, p]`; always `[n, …]`
    """

    count: int
    """n."""
    query: Callable[[Tensor], Tensor]
    """Projection of the query states `[B, T, d_q]` → `[B, T, n·p_q]`."""
    key: Callable[[Tensor], Tensor]
    """Projection of the key states `[B, S, d_k]` → `[B, S, m·p_k]`, m a divisor of n."""
    rule: AttentionRule
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    key_count: int | None = None
    """m; n when None."""

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Tensor], rule: AttentionRule) -> Heads:
        """Heads from their own parameters alone, `[n, …]` each.

        Args:
            parameters: `query_weight` `[n, p_q, d_q]`, `key_weight` `[n, p_k, d_k]`, `query_bias`
                `[n, p_q]` and `key_bias` `[n, p_k]` where there are any; of a layer that
                normalises its input first, `input_norm_weight` and `input_norm_bias` `[n, d]` (the
                same in all), and `input_norm_applies` `[n]` where not every layer does so; and
                the class's.
            rule: of all heads.

        """
        enter = partial(input_norm, parameters, rule)
        return cls(
            parameters["query_weight"].shape[0],
            projection(parameters, "query", enter),
            projection(parameters, "key", enter),
            rule,
            {name: each for name, each in parameters.items() if not name.startswith(_PROJECTING)},
        )

    def projected(self, query_states: Tensor, key_states: Tensor) -> tuple[Tensor, Tensor]:
        """Queries `[B, n, T, p_q]` and keys `[B, n, S, p_k]`, as they enter the score."""
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
        """Projected `[…, n, T, p_q]` and `[…, n, S, p_k]` → `[…, n, T, S]`.

        Args:
            query: as `projected` gives them.
            key: likewise.
            mask: as for `attention_weights`.
            distance: of each key from each query, int64 `[T, S]`; None where both begin at 0.
            in_float32: as for `attention_weights`.

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
        """What `weights` normalises, with what relative positions add and before any mask.

        Args:
            query: as for `weights`.
            key: likewise.
            distance: of each key from each query, int64 `[T, S]`.

        Returns:
            `[…, n, T, S]`.

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
        """Boolean `[T, S]` or `[n, T, S]` each: the keys that a query may look at."""
        allowed = []
        if self.rule.causal:
            allowed.append(distance <= 0)
        if "window" in self.parameters:
            allowed.append(distance.abs() <= self.parameters["window"][..., None, None])
        return allowed

    def _position_scores(self, query: Tensor, key: Tensor, positions: Tensor) -> Tensor:
        """(q · k_r + k · q_r) / √p of relative positions r `[T, S]`, `[B, n, T, S]`.

        He et al. 2021, eq. 4. Content's scores are computed once for each position, and gathered.
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
        """A parameter of a head's features, to be broadcast to `[B, n, T, p]`."""
        return self.parameters[name].unsqueeze(-2)


def attention_weights(
    heads: Heads,
    query_states: Tensor,
    key_states: Tensor,
    mask: Tensor | None = None,
    *,
    in_float32: bool = False,
) -> Tensor:
    """normalize(score(W^q q, W^k k)) of each head.

    Args:
        heads: of the layer.
        query_states: what the heads' queries are projected from, `[B, T, d_q]`.
        key_states: what their keys are projected from, `[B, S, d_k]`; in self-attention the same.
        mask: boolean, broadcasts to `[B, n, T, S]`; True = may look.
        in_float32: scores of a lower precision are normalised in float32.

    Returns:
        `[B, n, T, S]`, over keys; a row sums to 1. A row in which nothing may be looked at is
        finite.

    """
    query, key = heads.projected(query_states, key_states)
    return heads.weights(query, key, mask, in_float32=in_float32)


def some_heads(
    parameters: Mapping[str, Tensor], numbers: Sequence[int], count: int
) -> dict[str, Tensor]:
    """The parameters of heads by their numbers, as `Heads.from_parameters` takes them.

    Args:
        parameters: of all N heads of a layer, by name: `[N, …]` each, or `[m, …]` where N / m
            heads in a row share one.
        numbers: of the n heads, 0 … N−1.
        count: N.

    Returns:
        `[n, …]` each; without a copy what every head has of its own, if all are asked for.

    """
    every = list(numbers) == list(range(count))
    chosen = torch.tensor(list(numbers))
    return {
        name: each if every and len(each) == count else each[chosen * len(each) // count]
        for name, each in parameters.items()
    }


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """`[B, S, N·p]` → `[B, N, S, p]`."""
    return x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads).transpose(1, 2)


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """`[B, m, S, p]` → `[B, m·times, S, p]`, each head `times` times in a row."""
    return x if times == 1 else x.repeat_interleave(times, dim=1)


def _by_distance(table: Tensor, distance: Tensor) -> Tensor:
    """`[…, 2M − 1]` at distances `[T, S]`; a padded place may be farther than any token."""
    longest = (table.shape[-1] + 1) // 2
    places = (distance + longest - 1).clamp(0, 2 * longest - 2)
    found = torch.index_select(table, -1, places.flatten())
    return found.reshape(*table.shape[:-1], *distance.shape)


def _gathered(scores: Tensor, positions: Tensor) -> Tensor:
    """`[B, n, T, 2R]` at positions `[T, S]` → `[B, n, T, S]`."""
    return scores.gather(-1, positions.expand(*scores.shape[:2], *positions.shape))


def input_norm(parameters: Mapping[str, Tensor], rule: AttentionRule, states: Tensor) -> Tensor:
    """A layer's input `[B, S, d]` as its projections take it."""
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
    """What enters, and the linear map of n heads as one: `[B, S, d]` → `[B, S, n·p]`."""
    weight = parameters[f"{role}_weight"].flatten(0, 1)
    bias = parameters.get(f"{role}_bias")
    flat = None if bias is None else bias.flatten()
    return lambda states: functional.linear(enter(states), weight, flat)
