"""Description of a family of checkpoints: its config, its keys. Without torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

Renames = tuple[tuple[str, str], ...]
"""Patterns and their replacements, applied in order."""
SinusoidLayout = Literal["marian", "m2m_100"]
WORDS = "embeddings.word.weight"
"""Key of the word embedding in the encoder and in the decoder."""
OUTPUT = "lm_head.weight"
"""Key of the output map over words in a checkpoint."""
_DECODER, _SHARED = "decoder.", "shared"
_OUTPUTS = {OUTPUT: "output.weight", "final_logits_bias": "output_bias"}
_WRAPPERS = ("0.auto_model.", "auto_model.", "model.", "gte.")
"""Key prefixes of an encoder that was saved inside another module."""
_OUTSIDE = (
    r"^(pooler|cls|classifier|lm_head|qa_outputs|dropout|score|decoder|head|pre_classifier"
    r"|predictions|sop_classifier|sequence_summary|discriminator_predictions"
    r"|generator_predictions|generator_lm_head|lm_predictions|mask_predictions|vocab_transform"
    r"|vocab_layer_norm|vocab_projector|classification_head|cls_classifier"
    r"|distillation_classifier)\."
    r"|^embeddings\.(position_ids|token_type_ids|mask_token)$|inv_freq$"
)
"""Keys outside the encoder in any family: poolers, task heads, decoders, and buffers."""
_TOGETHER = {
    "attention.together": ("attention.query", "attention.key", "attention.value"),
    "feed_forward.together": ("feed_forward.gate", "feed_forward.expand"),
    "feed_forward.up_gate": ("feed_forward.expand", "feed_forward.gate"),
}
_EMBEDDINGS = {
    "word": r"(embeddings\.)?(word_embeddings|tok_embeddings|token_embedding|embed_tokens)",
    "position": r"(embeddings\.)?(position_embeddings?|embed_positions)",
    "token_type": r"embeddings\.token_type_embeddings",
    "patch": r"embeddings\.(patch_embeddings\.projection|patch_embedding)",
    "layer_norm": r"(embeddings\.(LayerNorm|norm)|emb_ln|layernorm_embedding|pre_layrnorm)",
    "projection": r"(embeddings_project|embeddings\.embed_proj|embedding_hidden_mapping_in)",
}
_AROUND_LAYERS = {
    "relative.bias": r"relative_attention_bias",
    "relative.embeddings": r"rel_embeddings",
    "relative.norm": r"LayerNorm",
    "final_norm": r"(norm|layernorm|layer_norm|final_layer_norm|post_layernorm)",
}
_IN_LAYERS = {
    "attention_norm": r"(attention\.(output\.)?LayerNorm|sa_layer_norm|input_layernorm"
    r"|self_attn_layer_norm|post_attention_layernorm|layernorm_before|layer_norm1|norm1|attn_norm"
    r"|attn_ln|layer\.0\.layer_norm)",
    "attention": r"(attention\.(self|attention|attn)|self_attn|attn|mixer"
    r"|layer\.0\.SelfAttention)",
    "cross": r"(encoder_attn|layer\.1\.EncDecAttention)",
    "cross_norm": r"encoder_attn_layer_norm",
    "feed_forward_norm": r"(layernorm_after|layer_norm2|mlp_norm|pre_feedforward_layernorm"
    r"|layer\.[12]\.layer_norm)",
    "output_norm": r"(output\.LayerNorm|output_layer_norm|full_layer_layer_norm|final_layer_norm"
    r"|mlp\.layernorm|post_mlp_layernorm|post_feedforward_layernorm|mlp_ln|norm2)",
    "feed_forward.contract": r"(output\.dense|ffn\.lin2|ffn_output|fc2"
    r"|mlp\.(fc2|wo|Wo|down_proj|weights_out)|layer\.[12]\.DenseReluDense\.wo)",
    "feed_forward.gate": r"(mlp\.(gate_proj|fc12)|layer\.[12]\.DenseReluDense\.wi_0)",
    "feed_forward.together": r"mlp\.(gated_layers|Wi|weights_in)",
    "feed_forward.up_gate": r"mlp\.up_gate_proj",
    "feed_forward.expand": r"(intermediate\.dense|ffn(\.lin1)?|fc1|mlp\.(fc1|fc11|up_proj)"
    r"|layer\.[12]\.DenseReluDense\.(wi|wi_1))",
}
_IN_ATTENTION = {
    "score_parameters": r"score",
    "query": r"(query_proj|q_proj|q_lin|q)",
    "key": r"(key_proj|k_proj|k_lin|k)",
    "value": r"(value_proj|v_proj|v_lin|v)",
    "together": r"(Wqkv|qkv_proj)",
    "output": r"(output\.dense|dense|out_proj|out_lin|o_proj|o|Wo)",
    "query_norm": r"q_norm",
    "key_norm": r"k_norm",
    "position_query": r"pos_query_proj",
    "position_key": r"pos_key_proj",
}
_LAYERS: Renames = (
    (r"^(encoder|transformer)\.", ""),
    (r"^(layer|block|albert_layer_groups)\.(\d+)\.(albert_layers\.0\.)?", r"layers.\2."),
)
"""Renames before a family's own."""
_COMMON: Renames = (
    (r"LayerNorm\.gamma$", "LayerNorm.weight"),  # in checkpoints from before 2019
    (r"LayerNorm\.beta$", "LayerNorm.bias"),
    (r"^embeddings\.(cls_token|class_embedding)$", "embeddings.special.0"),
    (r"^embeddings\.(distillation_token|register_tokens)$", "embeddings.special.1"),
    (r"^embeddings\.position_embeddings$", "embeddings.position.weight"),
    *((rf"^{theirs}\.", f"embeddings.{ours}.") for ours, theirs in _EMBEDDINGS.items()),
    *((rf"^{theirs}\.", f"{ours}.") for ours, theirs in _AROUND_LAYERS.items()),
    *((rf"^(layers\.\d+\.){theirs}\.", rf"\1{ours}.") for ours, theirs in _IN_LAYERS.items()),
    *(
        (rf"^(layers\.\d+\.)(attention|cross)\.{theirs}\.", rf"\1\2.{ours}.")
        for ours, theirs in _IN_ATTENTION.items()
    ),
)
"""Names of transformers' and others' modules → the encoder's, after a family's own renames."""


def split_together(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Split a tensor that holds several maps, `…together` or `…up_gate`; keep any other.

    These are queries, keys and values; and both maps of a gated feed-forward, the activated one
    first (`together`) or last (`up_gate`). Low-rank matrices stay as they are.
    """
    for together, parts in _TOGETHER.items():
        if together in name and ".lora_" not in name:
            pieces = tensor.chunk(len(parts))
            names = (name.replace(together, part) for part in parts)
            return dict(zip(names, pieces, strict=True))
    return {name: tensor}


@dataclass(frozen=True)
class Family:
    """Checkpoints of one `model_type`."""

    config: Callable[[Mapping[str, Any]], EncoderConfig]
    """Function from the content of a `config.json` to the encoder's config; raises
    `ValidationError`."""
    prefix: str
    """Prefix of the encoder's keys in a checkpoint of a task model."""
    outside: str = ""
    """Pattern of further keys, without the prefix, of tensors outside the encoder."""
    renames: Renames = ()
    """Replacements that turn a checkpoint's keys into the encoder's, before the common ones."""
    convert: Callable[[str, Tensor], Mapping[str, Tensor]] = split_together
    """Function from a renamed key and its tensor to the encoder's keys and tensors, for checkpoints
    that store several maps in one tensor, or a parameter in another form."""
    tied_words: tuple[str, ...] = ()
    """Possible keys of the word embedding, without the prefix, the encoder's own first: a
    checkpoint may store some or all tied weights."""
    sinusoids: SinusoidLayout | None = None
    """Layout of a sinusoidal position table that checkpoints do not store."""
    antialiased_positions: bool = False
    """Whether transformers interpolates a picture encoder's position table with antialiasing."""
    decoder: Callable[[Mapping[str, Any]], DecoderConfig | None] | None = None
    """Function from the content of a `config.json` to the decoder's config, None if there is only
    an encoder; raises `ValidationError`."""
    decoder_renames: Renames = ()
    """Replacements before `renames` for a decoder's keys."""
    half: bool = True
    """Whether hidden states of its checkpoints stay within half precision's maximum of 65,504."""
    refused: Renames = ()
    """Patterns of keys of builds that are not supported, and the descriptions of these builds."""

    def check_supported(self, keys: Collection[str], source: str) -> None:
        """Raise an error for keys of a build that is not supported."""
        for pattern, build in self.refused:
            if key := next((key for key in sorted(keys) if re.search(pattern, key)), None):
                raise CheckpointError(f"{source} holds {key}: it is {build}")

    def encoder_keys(self, keys: Collection[str]) -> dict[str, str]:
        """Return a checkpoint's keys of the encoder → the encoder's own keys."""
        renamed = {key: self.encoder_key(key) for key in keys}
        encoder_names = {key: name for key, name in renamed.items() if name is not None}
        return self._words(keys, self.tied_words) | encoder_names

    def encoder_key(self, key: str) -> str | None:
        """Return a checkpoint's key, renamed; None for a key outside the encoder."""
        key = self._without_prefixes(key)
        return None if self._is_outside(key) else _renamed(key, self.renames)

    def decoder_keys(self, keys: Collection[str]) -> dict[str, str]:
        """Return a checkpoint's keys of the decoder → the decoder's own keys.

        They include the output map if it has a key of its own.
        """
        own_first = sorted(
            self.tied_words,
            key=lambda key: (not key.startswith(_DECODER), not key.startswith(_SHARED)),
        )
        names = self._words(keys, own_first)
        for key in keys:
            plain = self._without_prefixes(key)
            inner = plain.removeprefix(_DECODER)
            if key not in names and plain in _OUTPUTS:
                names[key] = _OUTPUTS[plain]
            elif inner != plain and not self._is_outside(inner):
                inner = _renamed(inner, (*self.decoder_renames, *self.renames))
                names[key] = re.sub(r"^(layers\.\d+\.)(?!cross)", r"\1own.", inner)
        return names

    def _is_outside(self, key: str) -> bool:
        return bool(re.search(_OUTSIDE, key) or (self.outside and re.search(self.outside, key)))

    def _words(self, keys: Collection[str], tied: Collection[str]) -> dict[str, str]:
        """Return a checkpoint's key of the word embedding, for families that tie it to others."""
        present = {self._without_prefixes(key): key for key in keys}
        return {
            present[key]: WORDS
            for key in [word_key for word_key in tied if word_key in present][:1]
        }

    def _without_prefixes(self, key: str) -> str:
        for prefix in (*_WRAPPERS, self.prefix):
            if prefix and key.startswith(prefix):
                return self._without_prefixes(key.removeprefix(prefix))
        return key


def _renamed(key: str, renames: Renames) -> str:
    for pattern, replacement in (*_LAYERS, *renames, *_COMMON):
        key = re.sub(pattern, replacement, key)
    return key
