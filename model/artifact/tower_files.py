"""Vector settings of a tower of CLIP or SigLIP: its pooling, projection and special tokens.

Format: transformers' `config.json` of one tower. Without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from model.errors import ConfigError
from model.numerics.attention_pooling import POOLED_ACTIVATIONS
from model.numerics.pooling import PoolingMode
from model.numerics.vector_modules import Dense, LayerNorm, VectorModule

_END_TOKEN = 49407
"""transformers' default of `eos_token_id`."""
_HIGHEST = 2
"""Value of `eos_token_id` in configs of the first release, for which transformers pools the token
with the highest id."""


@dataclass(frozen=True)
class TowerVectors:
    """Pooling of a tower, and the modules after it."""

    pooling: PoolingMode
    modules: tuple[VectorModule, ...] = ()
    places: tuple[str, ...] = ()
    """Key of each module in the checkpoint, without the tower's prefix."""
    end_token_id: int | Literal["highest"] | None = None
    """Id of the token whose first occurrence is pooled; None for the last token, whatever it is."""
    padded: bool = False
    """Whether texts are padded to their maximum length, with padding tokens that are attended."""


def tower_vectors(folder: Path, config: Mapping[str, Any]) -> TowerVectors | None:
    """Return the vector settings of a tower; None for any other encoder."""
    read = _TOWERS.get(str(config.get("model_type")))
    return None if read is None else read(folder, config)


def _clip_text(folder: Path, config: Mapping[str, Any]) -> TowerVectors:
    end = config.get("eos_token_id", _END_TOKEN)
    if not isinstance(end, int) or isinstance(end, bool):
        raise ConfigError(f"{folder / 'config.json'}: eos_token_id {end!r} is not a token id")
    named: int | Literal["highest"] = "highest" if end == _HIGHEST else end
    if not _projects(config):
        return TowerVectors("last", end_token_id=named)
    projection = Dense(
        in_features=config.get("hidden_size", 512),
        out_features=config.get("projection_dim") or 512,
        bias=False,
        activation="Identity",
    )
    return TowerVectors("last", (projection,), ("text_projection",), named)


def _siglip_text(_: Path, config: Mapping[str, Any]) -> TowerVectors:
    size = config.get("hidden_size", 768)
    head = Dense(
        in_features=size,
        out_features=config.get("projection_size") or size,
        activation="Identity",
    )
    return TowerVectors("last", (head,), ("head",), padded=True)


def _projects(config: Mapping[str, Any]) -> bool:
    names = config.get("architectures") or []
    return any(str(name).endswith("WithProjection") for name in names)


def _clip_vision(_: Path, config: Mapping[str, Any]) -> TowerVectors:
    size = config.get("hidden_size", 768)
    norm = LayerNorm(dimension=size, eps=config.get("layer_norm_eps", 1e-5))
    if not _projects(config):
        return TowerVectors("cls", (norm,), ("post_layernorm",))
    projection = Dense(
        in_features=size,
        out_features=config.get("projection_dim") or 512,
        bias=False,
        activation="Identity",
    )
    return TowerVectors("cls", (norm, projection), ("post_layernorm", "visual_projection"))


def _siglip_vision(folder: Path, config: Mapping[str, Any]) -> TowerVectors:
    path = folder / "config.json"
    if config.get("vision_use_head") is False:
        raise ConfigError(f"{path}: vision_use_head is false, so that pictures have no vector")
    activation = config.get("hidden_act", "gelu_pytorch_tanh")
    if activation not in POOLED_ACTIVATIONS:
        known = ", ".join(sorted(POOLED_ACTIVATIONS))
        raise ConfigError(f"{path}: hidden_act {activation!r} of the pooling is none of {known}")
    return TowerVectors("attention")


_TOWERS: Mapping[str, Callable[[Path, Mapping[str, Any]], TowerVectors]] = {
    "clip_text_model": _clip_text,
    "clip_vision_model": _clip_vision,
    "siglip_text_model": _siglip_text,
    "siglip_vision_model": _siglip_vision,
}
