"""The encoder's configuration, read from a checkpoint's `config.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from model.errors import ConfigError

ScoreName = Literal["scaled_dot_product", "additive", "bilinear", "cosine"]
NormalizerName = Literal["softmax", "sparsemax"]
ActivationName = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh"]


class EncoderConfig(BaseModel):
    """A BERT-shaped encoder (Devlin et al. 2019, https://arxiv.org/abs/1810.04805).

    Field names are those of Hugging Face's `config.json`. Two are Headscope's own and choose
    how attention is computed: `attention_score` and `attention_normalizer`. Their defaults
    are BERT's. Unknown keys are ignored, as transformers does; keys that would change the
    computation in a way that is not supported are refused.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    model_type: Literal["bert"]
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    hidden_act: ActivationName = "gelu"
    max_position_embeddings: int = Field(gt=0, default=512)
    type_vocab_size: int = Field(gt=0, default=2)
    layer_norm_eps: float = Field(gt=0, default=1e-12)
    pad_token_id: int = Field(ge=0, default=0)
    attention_score: ScoreName = "scaled_dot_product"
    attention_normalizer: NormalizerName = "softmax"
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False

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

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> EncoderConfig:
        """Validate the content of a `config.json`.

        Raises:
            ConfigError: a field is missing, invalid or not supported; names every one.

        """
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, item['loc'])) or 'config'}: {item['msg']}"
                for item in error.errors(include_url=False, include_input=False)
            )
            raise ConfigError(f"config.json is not a supported encoder: {problems}") from None

    @classmethod
    def from_checkpoint(cls, folder: Path) -> EncoderConfig:
        """Read `config.json` of a Hugging Face checkpoint folder.

        Raises:
            ConfigError: the file is missing, not JSON, or describes something unsupported.

        """
        path = folder / "config.json"
        if not path.is_file():
            raise ConfigError(f"{folder} holds no config.json")
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} is not valid JSON: {error}") from None
        if not isinstance(fields, dict):
            raise ConfigError(f"{path} does not hold a JSON object")
        return cls.from_dict(fields)
