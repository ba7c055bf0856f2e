"""The decoder's configuration. Without torch."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from model.config import EncoderConfig


class DecoderConfig(BaseModel):
    """Shapes and functions of a decoder over an encoder's last hidden state."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: EncoderConfig
    start_token_id: int
    output_scale: float = 1.0
    output_bias: bool = False
    tied_output: bool = True
    cross_bias: bool = True
