"""Keys of `config.json` that several families share, with transformers' names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from model.config.decoder import DecoderConfig
from model.config.encoder import ActivationName, EncoderConfig, NormalizerName, ScoreName
from model.families.rotary import LONGEST


def _any_id(value: Any) -> Any:
    return 0 if value in (None, -1) else value


PaddingId = Annotated[int, BeforeValidator(_any_id), Field(ge=0)]
"""Id of the padding token; null and −1 become 0, as positions do not depend on it."""
Count = Annotated[int, Field(gt=0)]
"""Positive number."""


class SharedKeys(BaseModel):
    """BERT's keys, which its descendants share, with transformers' defaults.

    Unknown keys are ignored, as in transformers; keys that would change the computation in an
    unsupported way are errors. `attention_score` and `attention_normalizer` are Headscope's own.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    model_type: str
    vocab_size: Count
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    intermediate_size: Count
    hidden_act: ActivationName = "gelu"
    max_position_embeddings: Count = 512
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
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Return the keys of a checkpoint, by the content of its `config.json`."""
        keys = cls.model_validate({**fields, **cls._fixed})
        keys._fields = fields
        return keys

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> EncoderConfig:
        """Return the encoder of a checkpoint of the family."""
        return EncoderConfig.model_validate(cls.parse(fields).encoder_fields())

    def encoder_fields(self) -> dict[str, Any]:
        """Return the fields of the encoder's config."""
        return self.model_dump() | self._layouts()

    def _layouts(self) -> dict[str, Any]:
        """Return the fields of the encoder's config that differ from the keys."""
        return {}

    @property
    def longest(self) -> int:
        """Maximum tokens of one text if positions have no table."""
        return min(self.max_position_embeddings, LONGEST)


class EncoderDecoderKeys(SharedKeys):
    """Keys that distinguish an encoder–decoder from one half of it."""

    _fixed: ClassVar[Mapping[str, Any]] = {"type_vocab_size": 0}

    architectures: tuple[str, ...] | None = None
    is_encoder_decoder: bool = True

    @property
    def encoder_alone(self) -> bool:
        """Whether the checkpoint has only an encoder, as `T5EncoderModel`."""
        names = self.architectures or ()
        return any(re.search(r"Encoder(Model)?$", name) for name in names)

    @classmethod
    def read_decoder(cls, fields: Mapping[str, Any]) -> DecoderConfig | None:
        """Return the decoder of a checkpoint; None for a model with only an encoder."""
        keys = cls.parse(fields)
        if keys.encoder_alone:
            return None
        own = keys._decoder()
        layers = keys.encoder_fields() | own["layers"]
        return DecoderConfig.model_validate(own | {"layers": layers})

    def _decoder(self) -> dict[str, Any]:
        """Return the fields of the decoder's config; in `layers`, what differs from the encoder."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _has_an_encoder(self) -> Self:
        if not (self.is_encoder_decoder or self.encoder_alone):
            raise ValueError(
                "is_encoder_decoder is false, and no name among architectures is an encoder's"
            )
        return self
