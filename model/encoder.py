"""The encoder: embeddings, then L layers of self-attention and feed-forward.

Notation: B batch, S tokens, H hidden size, L layers, N heads, I intermediate size.
Post-norm residuals, as in BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.attention import AttentionSizes, MultiHeadAttention, padding_mask
from model.config import ActivationName, EncoderConfig

ACTIVATIONS: Mapping[ActivationName, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


class EncoderOutput(NamedTuple):
    """What one forward pass computed."""

    hidden_states: tuple[Tensor, ...]
    """L + 1 tensors `[B, S, H]`: the embeddings, then each layer's output."""
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
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        head_mask: Tensor | None = None,
        *,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Encode a padded batch.

        Args:
            input_ids: int64 `[B, S]`.
            attention_mask: `[B, S]`, 1 on real tokens, 0 on padding.
            token_type_ids: int64 `[B, S]`, the segment of each token.
            head_mask: `[B, L, N]`, multiplies a head's output; 0 ablates it.
            output_attentions: also return the attention weights of every layer.

        Returns:
            All hidden states and, when asked, all attentions.

        """
        mask = padding_mask(attention_mask)
        hidden_states = [self.embeddings(input_ids, token_type_ids)]
        attentions = []
        for index, layer in enumerate(self.layers):
            of_layer = None if head_mask is None else head_mask[:, index]
            hidden, weights = layer(hidden_states[-1], mask, of_layer)
            hidden_states.append(hidden)
            if output_attentions:
                attentions.append(weights)
        return EncoderOutput(tuple(hidden_states), tuple(attentions))


class Embeddings(nn.Module):
    """Word, position and segment embeddings, summed and normalised."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """`[B, S]`, `[B, S]` → `[B, S, H]`."""
        position = self.position.weight[: input_ids.shape[1]]
        summed = self.word(input_ids) + self.token_type(token_type_ids) + position
        return self.layer_norm(summed)


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
        self, hidden: Tensor, mask: Tensor, head_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """`[B, S, H]` → `[B, S, H]` and the attention weights `[B, N, S, S]`."""
        attended, weights = self.attention(hidden, hidden, hidden, mask, head_mask)
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
        """`[B, S, H]` → `[B, S, H]`, through `[B, S, I]`."""
        return self.contract(self.activation(self.expand(hidden)))
