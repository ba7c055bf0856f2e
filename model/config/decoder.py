"""The decoder's configuration. Without torch."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from model.config.encoder import EncoderConfig


class DecoderConfig(BaseModel):
    """Shapes and functions of a decoder over an encoder's last hidden state."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: EncoderConfig
    """The decoder's own stack: embeddings, causal self-attention, norms and feed-forward."""
    start_token_id: int | None = Field(ge=0)
    """The token that is read before a target's own; None where the target's last token is, as
    mBART's."""
    cross_bias: bool = True
    """Of the cross-attention's projections."""
    output_scale: float = 1.0
    """What the last hidden state is multiplied by before the output map."""
    output_bias: bool = False
    tied_output: bool = True
    """Whether the output map is the word embedding."""

    @model_validator(mode="after")
    def _starts_with_a_word(self) -> Self:
        start, words = self.start_token_id, self.layers.vocab_size
        if start is not None and start >= words:
            raise ValueError(f"decoder_start_token_id {start} is none of {words} words")
        return self
