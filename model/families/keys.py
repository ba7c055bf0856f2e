"""Keys of `config.json` that most families share, as transformers names them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from model.config import ActivationName, NormalizerName, ScoreName


def _any_id(value: Any) -> Any:
    return 0 if value is None else value


PaddingId = Annotated[int, BeforeValidator(_any_id), Field(ge=0)]
"""The padding token's id, which may be null where no position depends on it."""


class SharedKeys(BaseModel):
    """BERT's keys, which its descendants share, with transformers' defaults.

    Unknown keys are ignored, as transformers does; keys that would change the computation in a way
    that is not supported are refused. `attention_score` and `attention_normalizer` are our own.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

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
