"""BART (Lewis et al. 2020, https://arxiv.org/abs/1910.13461), and its descendants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from model.config.encoder import ActivationName, AttentionLayout, EmbeddingLayout, LayerLayout
from model.families.family import OUTPUT, Family, Renames
from model.families.keys import Count, EncoderDecoderKeys, PaddingId
from model.families.rotary import LONGEST

if TYPE_CHECKING:
    from torch import Tensor

_ROWS_BEFORE = 2
"""Number of leading rows of BART's position table that no token uses."""


class BartKeys(EncoderDecoderKeys):
    """Keys of `config.json` in BART and its descendants, with transformers' defaults."""

    vocab_size: Count = 50265
    hidden_size: Count = Field(1024, alias="d_model")
    num_hidden_layers: Count = Field(12, alias="encoder_layers")
    intermediate_size: Count = Field(4096, alias="encoder_ffn_dim")
    num_attention_heads: Count = Field(16, alias="encoder_attention_heads")
    decoder_layers: Count = 12
    decoder_ffn_dim: Count = 4096
    decoder_attention_heads: Count = 16
    hidden_act: ActivationName = Field("gelu", alias="activation_function")
    max_position_embeddings: Count = 1024
    scale_embedding: bool = False
    pad_token_id: PaddingId = 1
    decoder_start_token_id: int | None = Field(ge=0, default=None)
    tie_word_embeddings: bool = True

    _fixed: ClassVar[Mapping[str, Any]] = {"type_vocab_size": 0, "layer_norm_eps": 1e-5}
    _embeddings: ClassVar[Mapping[str, Any]] = {}
    """Fields of the layout of the embeddings of encoder and decoder."""
    _layer: ClassVar[LayerLayout] = LayerLayout()
    """Layout of each layer of encoder and decoder."""
    _output_bias: ClassVar[bool] = True

    def _layouts(self) -> dict[str, Any]:
        scale = self.hidden_size**0.5 if self.scale_embedding else 1.0
        return {
            "layer": self._layer,
            "embeddings": EmbeddingLayout(scale=scale, **self._embeddings),
        }

    def _decoder(self) -> dict[str, Any]:
        layers = {
            "vocab_size": self.target_words,
            "num_hidden_layers": self.decoder_layers,
            "num_attention_heads": self.decoder_attention_heads,
            "intermediate_size": self.decoder_ffn_dim,
            "attention": AttentionLayout(causal=True),
        }
        return {
            "layers": layers,
            "start_token_id": self.decoder_start_token_id,
            "output_bias": self._output_bias,
            "tied_output": self.tie_word_embeddings,
        }

    @property
    def target_words(self) -> int:
        """Number of words in the decoder's vocabulary."""
        return self.vocab_size


class BartConfig(BartKeys):
    """Keys of BART's `config.json`."""

    decoder_start_token_id: int = Field(ge=0, default=2)


class MBartConfig(BartKeys):
    """Keys of mBART's `config.json` (Liu et al. 2020, https://arxiv.org/abs/2001.08210).

    It is BART with norms before each part. The decoder reads a target's last token before the
    target.
    """

    _fixed: ClassVar[Mapping[str, Any]] = {**BartKeys._fixed, "decoder_start_token_id": None}
    _layer: ClassVar[LayerLayout] = LayerLayout(order="pre_norm")


class M2M100Config(BartKeys):
    """Keys of the `config.json` of M2M-100 (Fan et al. 2020) and of NLLB.

    https://arxiv.org/abs/2010.11125. It is mBART with sinusoidal positions, which start after the
    padding token's id.
    """

    _layer: ClassVar[LayerLayout] = LayerLayout(order="pre_norm")
    _embeddings: ClassVar[Mapping[str, Any]] = {"positions": "table_after_padding", "norm": False}
    _output_bias: ClassVar[bool] = False

    vocab_size: Count = 128112
    hidden_size: int = Field(1024, gt=4, alias="d_model")
    hidden_act: ActivationName = Field("relu", alias="activation_function")
    max_position_embeddings: int = Field(gt=0, le=LONGEST, default=1024)
    scale_embedding: bool = True
    pad_token_id: int = Field(ge=0, default=1)
    decoder_start_token_id: int = Field(ge=0, default=2)


class MarianConfig(BartKeys):
    """Keys of Marian's `config.json`, as in OPUS-MT (Junczys-Dowmunt et al. 2018).

    https://arxiv.org/abs/1804.00344. It is BART with sinusoidal positions, without a norm of the
    embeddings, and optionally with a separate vocabulary for the target.
    """

    _embeddings: ClassVar[Mapping[str, Any]] = {"norm": False}

    vocab_size: Count = 58101
    decoder_vocab_size: Count | None = None
    share_encoder_decoder_embeddings: bool = True
    max_position_embeddings: int = Field(gt=0, le=LONGEST, default=1024)
    pad_token_id: PaddingId = 58100
    decoder_start_token_id: int = Field(ge=0, default=58100)

    @property
    def target_words(self) -> int:
        """Number of words in the decoder's vocabulary."""
        if self.share_encoder_decoder_embeddings:
            return self.vocab_size
        return self.decoder_vocab_size or self.vocab_size


def _without_first_rows(name: str, tensor: Tensor) -> dict[str, Tensor]:
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
TIED = r"^shared\.|^final_logits_bias$|^(encoder\.)?embed_tokens\."
"""Keys of tied weights, and of the bias of the output map."""


def _family(keys: type[BartKeys], renames: Renames = (), **own: Any) -> Family:
    return Family(
        config=keys.read,
        prefix="model.",
        outside=TIED + r"|^(encoder\.)?version$|embed_positions\.weights$",  # of older versions
        renames=renames,
        tied_words=TIED_WORDS,
        decoder=keys.read_decoder,
        **own,
    )


_PRE_NORM: Renames = ((r"^(layers\.\d+\.)final_layer_norm\.", r"\1feed_forward_norm."),)
FAMILIES = {
    "bart": _family(BartConfig, convert=_without_first_rows),
    "m2m_100": _family(M2M100Config, _PRE_NORM, sinusoids="m2m_100"),
    "marian": _family(MarianConfig, sinusoids="marian"),
    "mbart": _family(MBartConfig, _PRE_NORM, convert=_without_first_rows),
}
