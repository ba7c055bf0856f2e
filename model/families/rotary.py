"""Rotary positions, windows and kinds of layers in configs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from model.config.encoder import RotaryScaling

LayerType = Literal["full_attention", "sliding_attention"]
LONGEST = 8192
"""Maximum tokens of one text if positions have no table."""


class _RotaryParameters(BaseModel):
    """Rotary parameters in a config, with transformers' names."""

    model_config = ConfigDict(extra="ignore")

    rope_type: Literal["default", "linear", "dynamic", "yarn", "llama3"] = "default"
    rope_theta: float | None = None
    partial_rotary_factor: Literal[1] | None = None
    factor: float | None = Field(ge=1, default=None)
    original_max_position_embeddings: int | None = Field(gt=0, default=None)
    attention_factor: float | None = Field(gt=0, default=None)
    mscale: float | None = None
    mscale_all_dim: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    truncate: bool = True
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        needed = {
            "linear": ("factor",),
            "yarn": ("factor",),
            "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
        }
        for name in needed.get(self.rope_type, ()):
            if getattr(self, name) is None:
                raise ValueError(f"rope_type {self.rope_type} needs {name}")
        return self

    def scaling(self, longest: object) -> RotaryScaling | None:
        """Return the scaling; None without one.

        `dynamic` scales only texts beyond the model's positions, which are never computed.
        """
        common = {
            "kind": self.rope_type,
            "factor": self.factor,
            "original_length": self.original_max_position_embeddings or longest,
        }
        match self.rope_type:
            case "linear":
                return RotaryScaling.model_validate(common | {"original_length": 1})
            case "llama3":
                low, high = self.low_freq_factor, self.high_freq_factor
                rotations = {"low_rotations": low, "high_rotations": high}
                return RotaryScaling.model_validate(common | rotations)
            case "yarn":
                own = {
                    "low_rotations": self.beta_slow or 1,
                    "high_rotations": self.beta_fast or 32,
                    "whole_features": self.truncate,
                    "attention_factor": self.attention_factor or self._yarn_factor(),
                }
                return RotaryScaling.model_validate(common | own)
        return None

    def _yarn_factor(self) -> float:
        """Return √(1/t) of Peng et al. 2023, eq. 22, or the ratio that `mscale` gives."""

        def scale(weight: float) -> float:
            return 0.1 * weight * math.log(self.factor or 1) + 1

        if self.mscale and self.mscale_all_dim:
            return scale(self.mscale) / scale(self.mscale_all_dim)
        return scale(1)


@dataclass(frozen=True)
class Rotary:
    """Rotary positions of a layer."""

    base: float
    scaling: RotaryScaling | None = None


def rotary(
    fields: Mapping[str, Any], old_key: str, default: float, layer_type: LayerType | None = None
) -> Rotary:
    """Return the rotary positions that a config describes.

    The config has `rope_parameters`, by kind of layer if it distinguishes kinds, or the keys of
    older configs: `old_key` for the base, whose default in transformers is `default`.
    """
    parameters = fields.get("rope_parameters") or {}
    if layer_type is not None and isinstance(parameters, Mapping):
        parameters = parameters.get(layer_type) or {}
    scaling = fields.get("rope_scaling")
    given = scaling or parameters
    if isinstance(given, Mapping) and isinstance(parameters, Mapping):
        outside = {
            name: fields[name]
            for name in ("partial_rotary_factor", "original_max_position_embeddings")
            if fields.get(name) is not None
        }
        of_layer = parameters if layer_type is not None else {}
        kind = given.get("rope_type", given.get("type", "default"))
        given = {**outside, **of_layer, **given, "rope_type": kind}
        if "original_max_position_embeddings" in outside:  # transformers prefers this one
            given |= outside
    read = _RotaryParameters.model_validate(given)
    base = read.rope_theta or fields.get(old_key) or default
    return Rotary(base, read.scaling(fields.get("max_position_embeddings") or LONGEST))


def rotary_layout(layers: Sequence[Rotary]) -> dict[str, Any]:
    """Return the fields of an `AttentionLayout` for the rotary positions of each layer."""
    scalings = tuple(layer.scaling for layer in layers)
    return {
        "rotary_bases": tuple(layer.base for layer in layers),
        "rotary_scalings": scalings if any(scalings) else (),
    }


def layer_types(
    given: Sequence[LayerType] | None, count: int, full: Callable[[int], bool]
) -> list[LayerType]:
    """Return the kind of each layer 0 … L−1: as given, or full if `full` is true of its index."""
    if given is not None:
        return list(given)
    return ["full_attention" if full(i) else "sliding_attention" for i in range(count)]


def windows(
    kinds: Sequence[LayerType], distance: int, longest: int = LONGEST
) -> tuple[int | None, ...]:
    """Return the largest distance of an allowed key in each layer; empty if none is limited.

    `distance` is the largest in a layer with a window, which may exceed the longest text.
    """
    if "sliding_attention" not in kinds or distance >= longest - 1:
        return ()
    return tuple(distance if kind == "sliding_attention" else None for kind in kinds)
