"""Configuration of decoders. Without torch."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from model.config.encoder import EncoderConfig, Part


class DecoderConfig(Part):
    """Config of a decoder over an encoder's last hidden state."""

    layers: EncoderConfig
    """Config of the decoder's own layers: embeddings, causal self-attention, norms,
    feed-forward."""
    start_token_id: int | None = Field(ge=0)
    """Id of the first token that the decoder reads before the target's labels. None: it reads the
    last label first, as in mBART."""
    cross_bias: bool = True
    """Whether the projections of cross-attention have a bias."""
    output_scale: float = 1.0
    """Factor of the last hidden state before the output map."""
    output_bias: bool = False
    tied_output: bool = True
    """Whether the output map shares the word embedding."""

    @model_validator(mode="after")
    def _starts_with_a_word(self) -> Self:
        start, words = self.start_token_id, self.layers.vocab_size
        if start is not None and start >= words:
            raise ValueError(f"decoder_start_token_id {start} is none of {words} words")
        return self
