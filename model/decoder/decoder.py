"""Decoder of an encoder–decoder model: a target's tokens over a source's hidden state.

A forward pass reads a given target; nothing is generated. Targets and sources are packed end to
end, like an encoder's texts (see `model.numerics.batch`).

Notation: B pairs of texts, T_all and S_all tokens of all targets and sources, T and S of the
longest, H hidden size, L layers, N heads, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.attention.self_attention import Relative
from model.checkpoint import build, collect, stored_tensors
from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.decoder.layers import CrossAttention, DecoderLayer, cross_rule
from model.encoder.encoder import LayerStack
from model.encoder.layers import Layer
from model.families.family import WORDS
from model.families.registry import FAMILIES, read_decoder_config
from model.packing import PackedBatch


class DecoderOutput(NamedTuple):
    """Result of a forward pass."""

    hidden_states: tuple[Tensor, ...]
    """L + 1 tensors `[T_all, H]`: the embeddings, then each layer's output. The last one is
    normalised if the decoder has a norm after its last layer."""
    cross_queries: tuple[Tensor, ...]
    """L tensors `[T_all, H]`: inputs of the query projection of each layer's cross-attention."""
    attentions: tuple[Tensor, ...]
    """L tensors `[B, N, T, T]`, weights of self-attention; empty unless requested."""
    cross_attentions: tuple[Tensor, ...]
    """L tensors `[B, N, T, S]`, weights of cross-attention; empty unless requested."""


class Decoder(LayerStack):
    """Decoder from targets' token ids and sources' hidden states to targets' hidden states."""

    def __init__(self, config: DecoderConfig) -> None:
        layers, cross = config.layers, cross_rule(config)
        super().__init__(layers, lambda number, rule: DecoderLayer(config, number, rule, cross))
        self.config, self.cross_rule = config, cross
        self.output = None
        if not config.tied_output:
            self.output = nn.Linear(layers.hidden_size, layers.vocab_size, bias=False)
        self.output_bias = None
        if config.output_bias:
            self.output_bias = nn.Parameter(torch.zeros(layers.vocab_size))

    def forward(
        self,
        target: PackedBatch,
        source: PackedBatch,
        encoded: Tensor,
        *head_masks: Tensor | None,
        output_attentions: bool = False,
        relative: Sequence[Relative] | None = None,
    ) -> DecoderOutput:
        """Decode given targets, shifted right (see `shift_right`), over their sources.

        `encoded` is the encoder's last hidden state of the sources, `[S_all, H]`. `head_masks` are
        of self-attention and of cross-attention, both or neither, `[B, L, N]` each or None; they
        multiply a head's output, and 0 ablates it. `relative` is the result of
        `relative_parameters`, if computed beforehand.
        """
        own, cross = head_masks or (None, None)
        hidden_states, cross_queries = [self.embeddings(target)], []
        attentions, cross_attentions = [], []
        for number, of_heads in enumerate(relative or self.relative_parameters()):
            layer, entering = self.decoder_layer(number), hidden_states[-1]
            read = partial(
                layer.cross.attend,
                target=target,
                encoded=encoded,
                source=source,
                head_mask=_of_layer(cross, number),
            )
            leaving = layer(entering, target, _of_layer(own, number), of_heads, read)
            hidden_states.append(leaving.hidden)
            cross_queries.append(leaving.cross_queries)
            if output_attentions:
                attentions.append(layer.own.maps(entering, target, of_heads))
                maps = layer.cross.maps(leaving.cross_queries, target, encoded, source)
                cross_attentions.append(maps)
        hidden_states[-1] = self.final_norm(hidden_states[-1])
        return DecoderOutput(
            tuple(hidden_states), tuple(cross_queries), tuple(attentions), tuple(cross_attentions)
        )

    def logprobs(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return the log-probability, in nats, of one word after each of n states.

        Rows `[n, H]` of the last hidden state, ids `[n]` of the words → `[n]`, float32.
        """
        weight = self.embeddings.word.weight if self.output is None else self.output.weight
        if self.config.output_scale != 1.0:
            rows = rows * self.config.output_scale
        logits = functional.linear(rows, weight, self.output_bias).float()
        return logits.log_softmax(dim=-1).gather(1, labels[:, None]).squeeze(1)

    def layer(self, number: int) -> Layer:
        """Return self-attention and feed-forward of layer 0 … L−1."""
        return self.decoder_layer(number).own

    def decoder_layer(self, number: int) -> DecoderLayer:
        """Return layer 0 … L−1."""
        return cast(DecoderLayer, self.layers[number])

    def cross_head_parameters(self) -> list[dict[str, Tensor]]:
        """Return name → parameter of all cross-attention heads of each layer, `[N, …]` each.

        A layer's maps depend on these parameters, its query states and the encoder's last hidden
        state alone.
        """
        return [layer.head_parameters() for layer in self._cross()]

    def cross_value_parameters(self) -> list[dict[str, Tensor]]:
        """Return the parameters of the vectors added by cross-attention.

        Its heads take values from the encoder's last hidden state.
        """
        return [layer.value_parameters() for layer in self._cross()]

    def _cross(self) -> list[CrossAttention]:
        layers = range(self.config.layers.num_hidden_layers)
        return [self.decoder_layer(number).cross for number in layers]


def _of_layer(head_mask: Tensor | None, number: int) -> Tensor | None:
    return None if head_mask is None else head_mask[:, number]


_OUTPUT, _BIAS = "output.weight", "output_bias"


def load_decoder(folder: Path, encoder: EncoderConfig) -> Decoder | None:
    """Build the decoder of a checkpoint, in float32 and in evaluation mode.

    As in transformers, the output map is tied to the word embedding if both are equal, whatever
    `tie_word_embeddings` is. A missing bias of the output map is zero. None for a checkpoint with
    only an encoder.
    """
    family = FAMILIES.get(encoder.model_type)
    config = read_decoder_config(folder) if family and family.decoder else None
    if family is None or config is None:
        return None
    tensors = collect(folder, family, family.decoder_keys)
    words, output = tensors.get(WORDS), tensors.get(_OUTPUT)
    if output is not None and words is not None:
        config = config.model_copy(update={"tied_output": _equal(words, output)})
    if config.tied_output:
        tensors.pop(_OUTPUT, None)
    if config.output_bias and words is not None:
        bias = tensors.get(_BIAS, words.new_zeros(len(words)))
        tensors[_BIAS] = bias.reshape(-1)
    return build_decoder(config, tensors, source=str(folder))


def load_decoder_weights(path: Path, config: DecoderConfig) -> Decoder:
    """Load the decoder of an artifact's weights, which have the decoder's own keys."""
    return build_decoder(config, stored_tensors(path), source=str(path))


def build_decoder(config: DecoderConfig, tensors: dict[str, Tensor], source: str) -> Decoder:
    """Return a decoder that holds exactly these tensors."""
    return build(lambda: Decoder(config), config.layers, tensors, f"{source} (decoder)")


def _equal(words: Tensor, output: Tensor) -> bool:
    return words.shape == output.shape and bool((words == output).all())
