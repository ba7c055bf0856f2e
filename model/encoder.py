"""The encoder: embeddings, then L layers of self-attention and feed-forward.

Texts are packed: T tokens of all of them, end to end (see `model.artifact.batch`). What looks at
one token alone takes `[T, …]`, or `[1, T, …]` for runtimes that are faster with three axes.

Notation: B texts, T tokens of all of them, S tokens of the longest, H hidden size, L layers,
N heads, I intermediate size.
Post-norm residuals, as in BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.attention import AttentionSizes, MultiHeadAttention
from model.config import ActivationName, EncoderConfig
from model.packing import PackedBatch

ACTIVATIONS: Mapping[ActivationName, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


class EncoderOutput(NamedTuple):
    """Result of a forward pass."""

    hidden_states: tuple[Tensor, ...]
    """L + 1 tensors `[T, H]`: the embeddings, then each layer's output."""
    attentions: tuple[Tensor, ...]
    """L tensors `[B, N, S, S]`, over keys; empty unless asked for."""


class Encoder(nn.Module):
    """Token ids to contextual embeddings."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

    def forward(
        self,
        batch: PackedBatch,
        head_mask: Tensor | None = None,
        *,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Encode a packed batch.

        Args:
            batch: the tokens of B texts.
            head_mask: `[B, L, N]`, multiplies a head's output; 0 ablates it.
            output_attentions: also return the attention weights of every layer.

        Returns:
            All hidden states and, when asked, all attentions.

        """
        hidden_states = [self.embeddings(batch.input_ids, batch.token_type_ids, batch.position_ids)]
        attentions = []
        for index, layer in enumerate(self.layers):
            of_layer = None if head_mask is None else head_mask[:, index]
            hidden, weights = layer(hidden_states[-1], batch, of_layer)
            hidden_states.append(hidden)
            if output_attentions:
                attentions.append(weights)
        return EncoderOutput(tuple(hidden_states), tuple(attentions))

    def attention(self, layer: int) -> MultiHeadAttention:
        """The attention of layer 0 … L−1."""
        return cast(Layer, self.layers[layer]).attention


class Embeddings(nn.Module):
    """Word, position and segment embeddings, summed and normalised."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor) -> Tensor:
        """`[T]` each → `[T, H]`."""
        summed = self.word(input_ids) + self.token_type(token_type_ids)
        return self.layer_norm(summed + self.position(position_ids))


class Layer(nn.Module):
    """Self-attention, then feed-forward, each with a residual and a layer norm after it."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(
            AttentionSizes.uniform(config.hidden_size, config.num_attention_heads),
            config.attention_score,
            config.attention_normalizer,
        )
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.output_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self, hidden: Tensor, batch: PackedBatch, head_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """`[T, H]` → `[T, H]` and the attention weights `[B, N, S, S]`."""
        attended, weights = self.attention.packed(hidden, batch, head_mask)
        hidden = self.attention_norm(hidden + attended)
        return self.output_norm(hidden + self.feed_forward(hidden)), weights


class FeedForward(nn.Module):
    """W₂ f(W₁ x + b₁) + b₂ for each token alone (Vaswani et al. 2017, eq. 2)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.expand = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.contract = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """`[T, H]` → `[T, H]`, through `[T, I]`."""
        return self.contract(self.activation(self.expand(hidden)))
