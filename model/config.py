"""The encoder's configuration, independent of the checkpoint's family."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

ScoreName = Literal["scaled_dot_product", "additive", "bilinear", "cosine"]
NormalizerName = Literal["softmax", "sparsemax"]
ActivationName = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh"]


class EncoderConfig(BaseModel):
    """Shapes and functions of an encoder.

    `model.families` reads it from a checkpoint's `config.json`. `attention_score` and
    `attention_normalizer` are Headscope's own keys, and choose how attention is computed.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    model_type: str
    """Name of the checkpoint's family."""
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    hidden_act: ActivationName
    max_position_embeddings: int = Field(gt=0)
    type_vocab_size: int = Field(gt=0)
    layer_norm_eps: float = Field(gt=0)
    pad_token_id: int = Field(ge=0)
    attention_score: ScoreName = "scaled_dot_product"
    attention_normalizer: NormalizerName = "softmax"

    @model_validator(mode="after")
    def _heads_divide_hidden_size(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        return self

    @property
    def head_size(self) -> int:
        """Features of one head."""
        return self.hidden_size // self.num_attention_heads
