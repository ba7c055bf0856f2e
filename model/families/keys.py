"""Keys of `config.json` and of tensors that several families share, with transformers' names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from model.config.encoder import ActivationName, EncoderConfig, NormalizerName, ScoreName


def _any_id(value: Any) -> Any:
    return 0 if value in (None, -1) else value


PaddingId = Annotated[int, BeforeValidator(_any_id), Field(ge=0)]
"""Id of the padding token; null and −1 become 0, as positions do not depend on it."""


class SharedKeys(BaseModel):
    """BERT's keys, which its descendants share, with transformers' defaults.

    Unknown keys are ignored, as in transformers; keys that would change the computation in an
    unsupported way are errors. `attention_score` and `attention_normalizer` are Headscope's own.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    hidden_act: ActivationName = "gelu"
    max_position_embeddings: int = Field(gt=0, default=512)
    type_vocab_size: int = Field(ge=0, default=2)
    layer_norm_eps: float = Field(gt=0, default=1e-12)
    pad_token_id: PaddingId = 0
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False
    attention_score: ScoreName = "scaled_dot_product"
    attention_normalizer: NormalizerName = "softmax"

    _fixed: ClassVar[Mapping[str, Any]] = {}
    """Values in place of a `config.json`'s own."""
    _fields: Mapping[str, Any] = PrivateAttr({})
    """Whole content of the `config.json`."""

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> EncoderConfig:
        """Return the encoder of a checkpoint of the family, by the content of its `config.json`."""
        keys = cls.model_validate({**fields, **cls._fixed})
        keys._fields = fields
        return EncoderConfig.model_validate(keys.model_dump() | keys._layouts())

    def _layouts(self) -> dict[str, Any]:
        """Return the fields of the encoder's config that differ from the keys."""
        return {}


class EncoderDecoderKeys(BaseModel):
    """Keys that distinguish an encoder–decoder from one half of it."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    architectures: tuple[str, ...] | None = None
    is_encoder_decoder: bool = True
    is_decoder: Literal[False] = False

    @property
    def encoder_alone(self) -> bool:
        """Whether the checkpoint has only an encoder, as `T5EncoderModel`."""
        names = self.architectures or ()
        return any(re.search(r"Encoder(Model)?$", name) for name in names)

    @model_validator(mode="after")
    def _has_an_encoder(self) -> Self:
        if not (self.is_encoder_decoder or self.encoder_alone):
            raise ValueError(
                "is_encoder_decoder is false, and no name among architectures is an encoder's"
            )
        return self


LLAMA_RENAMES = (
    (r"^embed_tokens\.", "embeddings.word."),
    (r"^norm\.", "final_norm."),
    (r"\.self_attn\.score\.", ".attention.score_parameters."),
    (r"\.self_attn\.q_proj\.", ".attention.query."),
    (r"\.self_attn\.k_proj\.", ".attention.key."),
    (r"\.self_attn\.v_proj\.", ".attention.value."),
    (r"\.self_attn\.o_proj\.", ".attention.output."),
    (r"\.self_attn\.q_norm\.", ".attention.query_norm."),
    (r"\.self_attn\.k_norm\.", ".attention.key_norm."),
    (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.mlp\.gate_proj\.", ".feed_forward.gate."),
    (r"\.mlp\.up_proj\.", ".feed_forward.expand."),
    (r"\.mlp\.down_proj\.", ".feed_forward.contract."),
)
"""Keys of tensors in Llama-like models of transformers → the encoder's keys."""
