"""Rotary positions, windows and kinds of layers in configs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

LayerType = Literal["full_attention", "sliding_attention"]
LONGEST = 8192
"""Maximum tokens of one text if positions have no table."""


class _RotaryParameters(BaseModel):
    """Rotary parameters in a config; scaled positions are not supported."""

    model_config = ConfigDict(extra="ignore")

    rope_type: Literal["default"] = "default"
    rope_theta: float | None = None
    partial_rotary_factor: Literal[1] = 1


def rotary_base(
    fields: Mapping[str, Any], old_key: str, default: float, layer_type: LayerType | None = None
) -> float:
    """Return the base of rotary positions.

    Args:
        fields: content of the config: `rope_parameters`, by kind of layer if it distinguishes
            kinds, or the keys of older configs.
        old_key: key of the base in older configs.
        default: default of transformers.
        layer_type: kind of the layer.

    Raises:
        ValidationError: the config scales positions.

    """
    parameters = fields.get("rope_parameters") or {}
    if layer_type is not None and isinstance(parameters, Mapping):
        parameters = parameters.get(layer_type) or {}
    scaling = fields.get("rope_scaling") or {}
    if isinstance(scaling, Mapping) and "type" in scaling:
        scaling = {"rope_type": scaling["type"], **scaling}
    named = [_RotaryParameters.model_validate(p).rope_theta for p in (scaling, parameters)]
    return next(filter(None, (*named, fields.get(old_key))), default)


def layer_types(
    given: Sequence[LayerType] | None, count: int, full: Callable[[int], bool]
) -> list[LayerType]:
    """Return the kind of each layer 0 … L−1: as given, or full if `full` is true of its index."""
    if given is not None:
        return list(given)
    return ["full_attention" if full(i) else "sliding_attention" for i in range(count)]


def windows(kinds: Sequence[LayerType], distance: int) -> tuple[int | None, ...]:
    """Return the largest distance of an allowed key in each layer; empty if all are full."""
    if "sliding_attention" not in kinds:
        return ()
    return tuple(distance if kind == "sliding_attention" else None for kind in kinds)
