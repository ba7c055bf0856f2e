"""CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023): both towers. Without torch.

https://arxiv.org/abs/2103.00020, https://arxiv.org/abs/2303.15343
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from model.config.encoder import ActivationName, AttentionLayout, LayerLayout
from model.errors import ConfigError
from model.families.family import Family
from model.families.keys import Count, PaddingId, SharedKeys
from model.families.pictures import PictureKeys, Size

Tower = Literal["text", "vision"]
_KINDS = {"clip": "CLIP", "siglip": "Siglip"}
"""`model_type` of a checkpoint with two towers → beginning of transformers' names."""
_CLASSIFIER = "ForImageClassification"
_LABELS = ("id2label", "num_labels", "problem_type")


def towers(config: Mapping[str, Any]) -> dict[Tower, dict[str, Any]]:
    """Return the `config.json` of each tower; empty unless it has towers."""
    kind = str(config.get("model_type"))
    if kind not in _KINDS:
        return {}
    name = _KINDS[kind]
    architecture = str((config.get("architectures") or [f"{name}Model"])[0])
    if architecture == f"{name}{_CLASSIFIER}":
        labels = {key: config[key] for key in _LABELS if key in config}
        return {"vision": _tower(config, kind, "vision", architecture) | labels}
    if architecture != f"{name}Model":
        raise ConfigError(
            f"config.json: the architecture {architecture} is not supported: {name}Model and "
            f"{name}{_CLASSIFIER} are"
        )
    projection = "WithProjection" if kind == "clip" else ""
    return {
        tower: _tower(config, kind, tower, f"{name}{tower.title()}Model{projection}")
        for tower in ("text", "vision")
    }


def _tower(config: Mapping[str, Any], kind: str, tower: Tower, architecture: str) -> dict[str, Any]:
    """Return the config of a tower, which old checkpoints hold in full under another key."""
    own = config.get(f"{tower}_config_dict") or config.get(f"{tower}_config")
    if not isinstance(own, dict):
        raise ConfigError(f"config.json: {tower}_config is missing")
    size = {"projection_dim": config.get("projection_dim") or 512} if kind == "clip" else {}
    return own | size | {"model_type": f"{kind}_{tower}_model", "architectures": [architecture]}


class ClipTextConfig(SharedKeys):
    """Keys of the `config.json` of CLIP's text tower, with transformers' defaults."""

    _fixed: ClassVar[Mapping[str, Any]] = {"type_vocab_size": 0}
    _causal: ClassVar[bool] = True

    vocab_size: Count = 49408
    hidden_size: Count = 512
    intermediate_size: Count = 2048
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 8
    max_position_embeddings: Count = 77
    hidden_act: ActivationName = "quick_gelu"
    layer_norm_eps: float = Field(gt=0, default=1e-5)
    pad_token_id: PaddingId = 1

    def _layouts(self) -> dict[str, Any]:
        return {
            "embeddings": {"norm": False},
            "attention": AttentionLayout(causal=self._causal),
            "layer": LayerLayout(order="pre_norm"),
        }


class SiglipTextConfig(ClipTextConfig):
    """Keys of the `config.json` of SigLIP's text tower, with transformers' defaults."""

    _causal: ClassVar[bool] = False

    vocab_size: Count = 32000
    hidden_size: Count = 768
    intermediate_size: Count = 3072
    num_attention_heads: Count = 12
    max_position_embeddings: Count = 64
    hidden_act: ActivationName = "gelu_pytorch_tanh"
    layer_norm_eps: float = Field(gt=0, default=1e-6)


class ClipVisionConfig(PictureKeys):
    """Keys of the `config.json` of CLIP's vision tower, with transformers' defaults."""

    patch_size: Size = (32, 32)
    hidden_act: ActivationName = "quick_gelu"
    layer_norm_eps: float = Field(gt=0, default=1e-5)

    def _layouts(self) -> dict[str, Any]:
        layouts = self.picture_layouts(("[CLS]",))
        layouts["embeddings"] = layouts["embeddings"].model_copy(update={"norm": True})
        layouts["layer"] = LayerLayout(order="pre_norm", final_norm=False)
        return layouts


class SiglipVisionConfig(PictureKeys):
    """Keys of the `config.json` of SigLIP's vision tower, with transformers' defaults."""

    hidden_act: ActivationName = "gelu_pytorch_tanh"
    layer_norm_eps: float = Field(gt=0, default=1e-6)

    def _layouts(self) -> dict[str, Any]:
        return self.picture_layouts(())


_OUTSIDE = r"^(text_projection|visual_projection)\.|^logit_(scale|bias)$"
_TEXT, _VISION = rf"^text_model\.|{_OUTSIDE}", rf"^vision_model\.|{_OUTSIDE}"
FAMILIES = {
    "clip_text_model": Family(ClipTextConfig.read, "text_model.", _VISION),
    "clip_vision_model": Family(  # whose last norm follows the pooling
        ClipVisionConfig.read, "vision_model.", rf"^post_layernorm\.|{_TEXT}"
    ),
    "siglip_text_model": Family(SiglipTextConfig.read, "text_model.", _VISION),
    "siglip_vision_model": Family(SiglipVisionConfig.read, "vision_model.", _TEXT),
}
