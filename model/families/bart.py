"""BART (Lewis et al. 2020, https://arxiv.org/abs/1910.13461), and parts of its descendants."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from model.config.decoder import DecoderConfig
from model.config.encoder import (
    ActivationName,
    AttentionLayout,
    EmbeddingLayout,
    EncoderConfig,
    LayerLayout,
    NormalizerName,
    ScoreName,
)
from model.families.family import OUTPUT, Family, Renames
from model.families.keys import EncoderDecoderKeys, PaddingId

if TYPE_CHECKING:
    from torch import Tensor

_ROWS_BEFORE = 2
"""Number of leading rows of BART's position table that no token uses."""


class BartKeys(EncoderDecoderKeys):
    """Keys of `config.json` in BART and its descendants, with transformers' defaults."""

    model_type: str
    vocab_size: int = Field(gt=0, default=50265)
    d_model: int = Field(gt=0, default=1024)
    encoder_layers: int = Field(gt=0, default=12)
    encoder_ffn_dim: int = Field(gt=0, default=4096)
    encoder_attention_heads: int = Field(gt=0, default=16)
    decoder_layers: int = Field(gt=0, default=12)
    decoder_ffn_dim: int = Field(gt=0, default=4096)
    decoder_attention_heads: int = Field(gt=0, default=16)
    activation_function: ActivationName = "gelu"
    max_position_embeddings: int = Field(gt=0, default=1024)
    scale_embedding: bool = False
    pad_token_id: PaddingId = 1
    decoder_start_token_id: int | None = Field(ge=0, default=None)
    tie_word_embeddings: bool = True
    attention_score: ScoreName = "scaled_dot_product"
    attention_normalizer: NormalizerName = "softmax"

    layer: ClassVar[LayerLayout] = LayerLayout()
    """Layout of each layer of encoder and decoder."""
    output_bias: ClassVar[bool] = True

    @property
    def embedding_scale(self) -> float:
        """Factor of a word's embedding."""
        return self.d_model**0.5 if self.scale_embedding else 1.0

    @property
    def embeddings(self) -> EmbeddingLayout:
        """Layout of the embeddings of encoder and decoder."""
        return EmbeddingLayout(scale=self.embedding_scale)

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> EncoderConfig:
        """Return the encoder of a checkpoint."""
        keys = cls.model_validate(fields)
        return EncoderConfig(
            num_hidden_layers=keys.encoder_layers,
            num_attention_heads=keys.encoder_attention_heads,
            intermediate_size=keys.encoder_ffn_dim,
            **keys._both(),
        )

    @classmethod
    def read_decoder(cls, fields: Mapping[str, Any]) -> DecoderConfig | None:
        """Return the decoder of a checkpoint; None for a model with only an encoder."""
        keys = cls.model_validate(fields)
        if keys.encoder_alone:
            return None
        layers = EncoderConfig(
            num_hidden_layers=keys.decoder_layers,
            num_attention_heads=keys.decoder_attention_heads,
            intermediate_size=keys.decoder_ffn_dim,
            attention=AttentionLayout(causal=True),
            **keys._both() | {"vocab_size": keys.target_words},
        )
        return DecoderConfig(
            layers=layers,
            start_token_id=keys.decoder_start_token_id,
            output_bias=keys.output_bias,
            tied_output=keys.tie_word_embeddings,
        )

    @property
    def target_words(self) -> int:
        """Number of words in the decoder's vocabulary."""
        return self.vocab_size

    def _both(self) -> dict[str, Any]:
        """Return the fields that encoder and decoder share."""
        return {
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.d_model,
            "hidden_act": self.activation_function,
            "max_position_embeddings": self.max_position_embeddings,
            "type_vocab_size": 0,
            "layer_norm_eps": 1e-5,
            "pad_token_id": self.pad_token_id,
            "attention_score": self.attention_score,
            "attention_normalizer": self.attention_normalizer,
            "layer": self.layer,
            "embeddings": self.embeddings,
        }


class BartConfig(BartKeys):
    """Keys of BART's `config.json`."""

    model_type: Literal["bart"]
    decoder_start_token_id: int = Field(ge=0, default=2)


def without_first_rows(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the tensor, and a position table without its unused rows."""
    if name == "embeddings.position.weight":
        tensor = tensor[_ROWS_BEFORE:].clone()
    return {name: tensor}


TIED_WORDS = (
    "encoder.embed_tokens.weight",
    "embed_tokens.weight",
    "shared.weight",
    "decoder.embed_tokens.weight",
    OUTPUT,
)
OUTSIDE = (
    r"^(decoder|shared|lm_head|classification_head|qa_outputs)\.|^final_logits_bias$"
    r"|^(encoder\.)?embed_tokens\.|^(encoder\.)?version$|embed_positions\.weights$"
)
"""Keys of the decoder, tied weights, task heads, and buffers of older versions."""
_ATTENTION = r"^(layers\.\d+\.)self_attn\."
_CROSS = r"^(layers\.\d+\.)encoder_attn\."
_PARTS = (
    ("score", "score_parameters"),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "output"),
)
RENAMES: Renames = (
    (r"^encoder\.", ""),
    (r"^embed_positions\.", "embeddings.position."),
    (r"^layernorm_embedding\.", "embeddings.layer_norm."),
    (r"^layer_norm\.", "final_norm."),
    *((rf"{_ATTENTION}{theirs}\.", rf"\1attention.{ours}.") for theirs, ours in _PARTS),
    (r"\.self_attn_layer_norm\.", ".attention_norm."),
    (r"\.fc1\.", ".feed_forward.expand."),
    (r"\.fc2\.", ".feed_forward.contract."),
)
"""Keys of BART-like models → the encoder's keys; without the last norm of a layer."""
POST_NORM: Renames = ((r"^(layers\.\d+\.)final_layer_norm\.", r"\1output_norm."),)
PRE_NORM: Renames = ((r"^(layers\.\d+\.)final_layer_norm\.", r"\1feed_forward_norm."),)
DECODER_RENAMES: Renames = (
    *((rf"{_CROSS}{theirs}\.", rf"\1cross.{ours}.") for theirs, ours in _PARTS),
    (r"\.encoder_attn_layer_norm\.", ".cross_norm."),
)
BART = Family(
    config=BartConfig.read,
    prefix="model.",
    outside=re.compile(OUTSIDE),
    renames=(*RENAMES, *POST_NORM),
    convert=without_first_rows,
    tied_words=TIED_WORDS,
    decoder=BartConfig.read_decoder,
    decoder_renames=DECODER_RENAMES,
)
