"""T5 (Raffel et al. 2020, https://arxiv.org/abs/1910.10683), its version 1.1, mT5 and UMT5.

mT5: Xue et al. 2021, https://arxiv.org/abs/2010.11934. UMT5, with a bias in each layer: Chung et
al. 2023, https://arxiv.org/abs/2304.09151.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from model.config.encoder import (
    ActivationName,
    AttentionLayout,
    EmbeddingLayout,
    LayerLayout,
    LogBuckets,
)
from model.families.bart import TIED, TIED_WORDS
from model.families.family import Family
from model.families.keys import Count, EncoderDecoderKeys
from model.families.rotary import LONGEST

_POSITIONS = 1024
"""Minimum limit of a text's tokens, because T5 has no limit: twice its training length.

A graph for longer texts computes attention in parts, even for short texts.
"""
_MT5 = {
    "vocab_size": 250112,
    "d_ff": 1024,
    "num_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
}
"""Defaults of transformers for mT5 and UMT5 that differ from T5's."""


class T5Config(EncoderDecoderKeys):
    """T5's keys of `config.json`, with transformers' defaults."""

    _fixed: ClassVar[Mapping[str, Any]] = {"type_vocab_size": 0, "hidden_act": "relu"}

    vocab_size: Count = 32128
    hidden_size: Count = Field(512, alias="d_model")
    head_size: Count = Field(64, alias="d_kv")
    intermediate_size: Count = Field(2048, alias="d_ff")
    num_hidden_layers: Count = Field(6, alias="num_layers")
    num_decoder_layers: Count | None = None
    num_attention_heads: Count = Field(8, alias="num_heads")
    relative_attention_num_buckets: int = Field(ge=4, default=32)
    relative_attention_max_distance: Count = 128
    n_positions: Count | None = None
    layer_norm_eps: float = Field(1e-6, gt=0, alias="layer_norm_epsilon")
    feed_forward_proj: str = "relu"
    decoder_start_token_id: int | None = Field(ge=0, default=None)
    tie_word_embeddings: bool | None = None
    scale_decoder_outputs: bool | None = None
    attention_score: Literal["scaled_dot_product"] = "scaled_dot_product"

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

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Return the keys of a checkpoint, by the content of its `config.json`."""
        return super().parse(fields if fields.get("model_type") == "t5" else {**_MT5, **fields})

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

    def _layouts(self) -> dict[str, Any]:
        return {
            "hidden_act": self.activation,
            "max_position_embeddings": min(max(self.n_positions or 0, _POSITIONS), LONGEST),
            "embeddings": EmbeddingLayout(positions="none", norm=False),
            "layer": LayerLayout(
                order="pre_norm",
                norm="rms_norm",
                gated=self.feed_forward_proj.startswith("gated-"),
                feed_forward_bias=False,
            ),
            "attention": self._attention("t5"),
        }

    def _attention(self, buckets: Literal["t5", "t5_causal"]) -> AttentionLayout:
        """Return the layout of the encoder's attention, or of the decoder's."""
        return AttentionLayout(
            head_size=self.head_size,
            bias=False,
            output_bias=False,
            query_scale=self.head_size**0.5,  # T5 does not divide its scores by it
            causal=buckets == "t5_causal",
            bias_by_layer=self.model_type == "umt5",
            bias_buckets=LogBuckets(
                kind=buckets,
                count=self.relative_attention_num_buckets,
                max_distance=self.relative_attention_max_distance,
            ),
        )

    def _decoder(self) -> dict[str, Any]:
        start = self.decoder_start_token_id
        layers = {
            "num_hidden_layers": self.num_decoder_layers or self.num_hidden_layers,
            "attention": self._attention("t5_causal"),
        }
        return {
            "layers": layers,
            "start_token_id": self.pad_token_id if start is None else start,
            "cross_bias": False,
            "output_scale": self.hidden_size**-0.5 if self.scales_output else 1.0,
        }


_BIAS = r"^layers\.(\d+)\.layer\.0\.SelfAttention\.relative_attention_bias\."


def _family(bias: str) -> Family:
    """Return the family whose bias of the distances in a layer has the key `bias`."""
    return Family(
        config=T5Config.read,
        prefix="transformer.",
        # the bias of cross-attention is left over from the first T5's training
        outside=TIED + r"|EncDecAttention\.relative_attention_bias\.",
        renames=((_BIAS, bias),),
        tied_words=TIED_WORDS,
        decoder=T5Config.read_decoder,
        decoder_renames=((r"\.layer\.1\.layer_norm\.", ".cross_norm."),),
        half=False,
    )


FAMILIES = {
    **dict.fromkeys(("mt5", "t5"), _family("relative.bias.")),
    "umt5": _family(r"relative.biases.\1."),
}
