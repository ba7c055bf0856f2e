"""T5 (Raffel et al. 2020, https://arxiv.org/abs/1910.10683), its version 1.1, mT5 and UMT5.

mT5: Xue et al. 2021, https://arxiv.org/abs/2010.11934. UMT5, with a bias in each layer: Chung et
al. 2023, https://arxiv.org/abs/2304.09151.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, Self, get_args

from pydantic import Field, model_validator

from model.config.decoder import DecoderConfig
from model.config.encoder import (
    ActivationName,
    AttentionLayout,
    EmbeddingLayout,
    EncoderConfig,
    LayerLayout,
    LogBuckets,
    NormalizerName,
)
from model.families.bart import TIED_WORDS
from model.families.family import Family, Renames
from model.families.keys import EncoderDecoderKeys, PaddingId
from model.families.rotary import LONGEST

_POSITIONS = 1024
"""Minimum limit of a text's tokens, because T5 has no limit: twice its training length.

A graph for longer texts computes attention in parts, even for short texts.
"""


class T5Config(EncoderDecoderKeys):
    """T5's keys of `config.json`, with transformers' defaults."""

    model_type: Literal["t5", "mt5", "umt5"]
    vocab_size: int = Field(gt=0, default=32128)
    d_model: int = Field(gt=0, default=512)
    d_kv: int = Field(gt=0, default=64)
    d_ff: int = Field(gt=0, default=2048)
    num_layers: int = Field(gt=0, default=6)
    num_decoder_layers: int | None = Field(gt=0, default=None)
    num_heads: int = Field(gt=0, default=8)
    relative_attention_num_buckets: int = Field(ge=4, default=32)
    relative_attention_max_distance: int = Field(gt=0, default=128)
    n_positions: int | None = Field(gt=0, default=None)
    layer_norm_epsilon: float = Field(gt=0, default=1e-6)
    feed_forward_proj: str = "relu"
    pad_token_id: PaddingId = 0
    decoder_start_token_id: int | None = Field(ge=0, default=None)
    tie_word_embeddings: bool | None = None
    scale_decoder_outputs: bool | None = None
    attention_score: Literal["scaled_dot_product"] = "scaled_dot_product"
    attention_normalizer: NormalizerName = "softmax"

    @model_validator(mode="after")
    def _is_computed(self) -> Self:
        if self.activation not in get_args(ActivationName):
            raise ValueError(f"feed_forward_proj {self.feed_forward_proj!r} is not supported")
        if self.relative_attention_max_distance <= self.relative_attention_num_buckets // 2:
            raise ValueError(
                f"relative_attention_max_distance {self.relative_attention_max_distance} gives "
                "far tokens no bucket"
            )
        return self

    @property
    def activation(self) -> str:
        """Activation of the feed-forward; T5's gelu is its tanh approximation if gated."""
        name = self.feed_forward_proj.removeprefix("gated-")
        return "gelu_new" if self.feed_forward_proj == "gated-gelu" else name

    @property
    def scales_output(self) -> bool:
        """Whether the last state is scaled before the output map: in T5, but not in 1.1 or mT5.

        transformers 5 scales UMT5's whatever its config says.
        """
        if self.model_type != "t5":
            return self.model_type == "umt5"
        if self.scale_decoder_outputs is not None:
            return self.scale_decoder_outputs
        return self.tie_word_embeddings is not False

    def stack(self, layers: int, buckets: Literal["t5", "t5_causal"]) -> EncoderConfig:
        """Return the config of the encoder, or of the decoder's layers."""
        fields = {
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.d_model,
            "num_hidden_layers": layers,
            "num_attention_heads": self.num_heads,
            "intermediate_size": self.d_ff,
            "hidden_act": self.activation,
            "max_position_embeddings": min(max(self.n_positions or 0, _POSITIONS), LONGEST),
            "type_vocab_size": 0,
            "layer_norm_eps": self.layer_norm_epsilon,
            "pad_token_id": self.pad_token_id,
            "attention_normalizer": self.attention_normalizer,
            "embeddings": EmbeddingLayout(positions="none", norm=False),
            "layer": LayerLayout(
                order="pre_norm",
                norm="rms_norm",
                gated=self.feed_forward_proj.startswith("gated-"),
                feed_forward_bias=False,
            ),
            "attention": AttentionLayout(
                head_size=self.d_kv,
                bias=False,
                output_bias=False,
                query_scale=self.d_kv**0.5,  # T5 does not divide its scores by it
                causal=buckets == "t5_causal",
                bias_by_layer=self.model_type == "umt5",
                bias_buckets=LogBuckets(
                    kind=buckets,
                    count=self.relative_attention_num_buckets,
                    max_distance=self.relative_attention_max_distance,
                ),
            ),
        }
        return EncoderConfig.model_validate(fields)


_MT5 = {
    "vocab_size": 250112,
    "d_ff": 1024,
    "num_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
}
"""Defaults of transformers for mT5 and UMT5 that differ from T5's."""


def _keys(fields: Mapping[str, Any]) -> T5Config:
    defaults = {} if fields.get("model_type") == "t5" else _MT5
    return T5Config.model_validate({**defaults, **fields})


def read_config(fields: Mapping[str, Any]) -> EncoderConfig:
    """Return the encoder of a T5 checkpoint."""
    config = _keys(fields)
    return config.stack(config.num_layers, "t5")


def read_decoder(fields: Mapping[str, Any]) -> DecoderConfig | None:
    """Return the decoder of a T5 checkpoint; None if it has only an encoder."""
    config = _keys(fields)
    if config.encoder_alone:
        return None
    start = config.decoder_start_token_id
    return DecoderConfig(
        layers=config.stack(config.num_decoder_layers or config.num_layers, "t5_causal"),
        start_token_id=config.pad_token_id if start is None else start,
        cross_bias=False,
        output_scale=config.d_model**-0.5 if config.scales_output else 1.0,
    )


_PROJECTIONS = (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))
_SELF = r"^(layers\.\d+\.)layer\.0\.SelfAttention\."
_BIAS = r"^layers\.(\d+)\.layer\.0\.SelfAttention\.relative_attention_bias\."
_CROSS = r"^(layers\.\d+\.)layer\.1\.EncDecAttention\."
_FEED_FORWARD = r"\.layer\.[12]\.DenseReluDense\."
_RENAMES: Renames = (
    (r"^encoder\.", ""),
    (r"^block\.", "layers."),
    (_BIAS, "relative.bias."),
    *((rf"{_SELF}{theirs}\.", rf"\1attention.{ours}.") for theirs, ours in _PROJECTIONS),
    (r"\.layer\.0\.layer_norm\.", ".attention_norm."),
    (_FEED_FORWARD + r"(wi|wi_1)\.", ".feed_forward.expand."),
    (_FEED_FORWARD + r"wi_0\.", ".feed_forward.gate."),
    (_FEED_FORWARD + r"wo\.", ".feed_forward.contract."),
    (r"\.layer\.[12]\.layer_norm\.", ".feed_forward_norm."),
    (r"^final_layer_norm\.", "final_norm."),
)
T5 = Family(
    config=read_config,
    prefix="transformer.",
    outside=re.compile(
        r"^(decoder|shared|lm_head|classification_head|classifier|qa_outputs)\."
        r"|^(encoder\.)?embed_tokens\."
        r"|EncDecAttention\.relative_attention_bias\."  # left over from the first T5's training
    ),
    renames=_RENAMES,
    tied_words=TIED_WORDS,
    decoder=read_decoder,
    decoder_renames=(
        (r"^block\.", "layers."),
        *((rf"{_CROSS}{theirs}\.", rf"\1cross.{ours}.") for theirs, ours in _PROJECTIONS),
        (r"\.layer\.1\.layer_norm\.", ".cross_norm."),
    ),
    half=False,
)
UMT5 = replace(
    T5,
    renames=tuple(
        (key, r"relative.biases.\1." if key == _BIAS else name) for key, name in _RENAMES
    ),
)
