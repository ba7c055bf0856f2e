"""SigLIP's pooling: a learned query attends to a picture's tokens, then a feed-forward. numpy only.

Zhai et al. 2022, section 2.2 (https://arxiv.org/abs/2106.04560): the multi-head attention pooling
(MAP) of Lee et al. 2019, https://arxiv.org/abs/1810.00825.

Notation: S tokens of a picture, H hidden size, N heads of p features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from model.config.encoder import EncoderConfig
from model.numerics.pooling import Vector
from model.numerics.vector_modules import ENCODER_ACTIVATIONS, Floats, standardized

PREFIX = "pooling."
"""Beginning of the names of the parameters in an artifact."""


def pooling_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Return name → shape of the parameters, with transformers' names."""
    h, inner = config.hidden_size, config.intermediate_size
    return {
        "probe": (1, 1, h),
        "attention.in_proj_weight": (3 * h, h),
        "attention.in_proj_bias": (3 * h,),
        "attention.out_proj.weight": (h, h),
        "attention.out_proj.bias": (h,),
        "layernorm.weight": (h,),
        "layernorm.bias": (h,),
        "mlp.fc1.weight": (inner, h),
        "mlp.fc1.bias": (inner,),
        "mlp.fc2.weight": (h, inner),
        "mlp.fc2.bias": (h,),
    }


class AttentionPooling:
    """Pooling of a picture's tokens to one vector."""

    def __init__(self, config: EncoderConfig, tensors: Mapping[str, Floats]) -> None:
        """Keep the parameters, and the query of each head in the space of the tokens.

        The pooling shares the tower's heads, activation and epsilon; its parameters are under
        `PREFIX`.
        """
        own = {name: tensors[PREFIX + name] for name in pooling_shapes(config)}
        heads = config.num_attention_heads
        queries, keys, self._values = np.split(own["attention.in_proj_weight"], 3)
        query_bias, _, self._value_bias = np.split(own["attention.in_proj_bias"], 3)
        query = (queries @ own["probe"][0, 0] + query_bias).reshape(heads, -1)
        size = query.shape[1]
        # the bias of the keys adds the same to every score of a head
        self._queries = np.einsum("np,nph->nh", query, keys.reshape(heads, size, -1))
        self._queries /= np.float32(math.sqrt(size))
        self._values = self._values.reshape(heads, size, -1)
        self._own, self._eps = own, config.layer_norm_eps
        self._function = ENCODER_ACTIVATIONS[config.hidden_act]

    def weights(self, hidden: Floats) -> Floats:
        """Return the attention weights `[N, S]` of the query over the tokens `[S, H]`."""
        scores = self._queries @ hidden.T
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights: Floats = shares / shares.sum(axis=1, keepdims=True)
        return weights

    def __call__(self, hidden: Floats) -> Vector:
        """Return the vector `[H]` of a picture's last hidden state `[S, H]`."""
        own = self._own
        means = self.weights(hidden) @ hidden  # [N, H]
        heads = np.einsum("nph,nh->np", self._values, means).reshape(-1) + self._value_bias
        vector = own["attention.out_proj.weight"] @ heads + own["attention.out_proj.bias"]
        inner = standardized(vector, self._eps) * own["layernorm.weight"] + own["layernorm.bias"]
        inner = self._function(own["mlp.fc1.weight"] @ inner + own["mlp.fc1.bias"])
        pooled: Vector = vector + own["mlp.fc2.weight"] @ inner + own["mlp.fc2.bias"]
        return pooled.astype(np.float32)

    def parts(self, parts: Floats) -> Floats:
        """Return the shares of input tokens in the vector, with what is not linear frozen.

        Attention weights, the deviation of the norm and the slopes f(x) / x of the activation are
        those of the states, and biases are divided equally among the shares. `parts` `[S, P, H]`
        are the state of every token, then the share of each input token in it. The result `[P, H]`
        is the vector, then its shares.
        """
        own, biases = self._own, np.full((parts.shape[1], 1), 1 / (parts.shape[1] - 1), np.float32)
        biases[0] = 1
        means = np.einsum("ns,sph->nph", self.weights(parts[:, 0]), parts)
        heads = np.einsum("nqh,nph->pnq", self._values, means).reshape(len(biases), -1)
        heads += biases * self._value_bias
        vectors = heads @ own["attention.out_proj.weight"].T
        vectors += biases * own["attention.out_proj.bias"]
        centred = vectors - vectors.mean(axis=1, keepdims=True)
        normed = centred / np.sqrt(np.square(centred[0]).mean() + np.float32(self._eps))
        inner = normed * own["layernorm.weight"] + biases * own["layernorm.bias"]
        inner = inner @ own["mlp.fc1.weight"].T + biases * own["mlp.fc1.bias"]
        outputs = self._function(inner[0])
        slopes = np.divide(outputs, inner[0], out=np.zeros_like(outputs), where=inner[0] != 0)
        pooled: Floats = vectors + (inner * slopes) @ own["mlp.fc2.weight"].T
        return (pooled + biases * own["mlp.fc2.bias"]).astype(np.float32)
