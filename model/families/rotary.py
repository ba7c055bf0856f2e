"""Rotary positions, windows and kinds of layers, as configs name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

LayerType = Literal["full_attention", "sliding_attention"]
LONGEST = 8192
"""The most tokens of one text where positions have no table."""


class _RotaryParameters(BaseModel):
    """What a config says of rotary positions; scaled ones are not supported."""

    model_config = ConfigDict(extra="ignore")

    rope_type: Literal["default"] = "default"
    rope_theta: float | None = None
    partial_rotary_factor: Literal[1] = 1


def rotary_base(
    fields: Mapping[str, Any], old_key: str, default: float, layer_type: LayerType | None = None
) -> float:
    """The base of rotary positions.

    Args:
        fields: a config's; `rope_parameters`, of the kind of layer where it tells kinds apart, or
            the keys of older configs.
        old_key: the base's in these.
        default: transformers'.
        layer_type: the kind of layer.

    Raises:
        ValidationError: positions are scaled in some way.

    """
    found = fields.get("rope_parameters") or {}
    if layer_type is not None and isinstance(found, Mapping):
        found = found.get(layer_type) or {}
    scaling = fields.get("rope_scaling") or {}
    if isinstance(scaling, Mapping) and "type" in scaling:
        scaling = {"rope_type": scaling["type"], **scaling}
    named = [_RotaryParameters.model_validate(each).rope_theta for each in (scaling, found)]
    return next(filter(None, (*named, fields.get(old_key))), default)


def layer_types(
    given: Sequence[LayerType] | None, count: int, full: Callable[[int], bool]
) -> list[LayerType]:
    """The kind of each layer 0 … L−1: as given, or as `full` tells it of the layer's number."""
    if given is not None:
        return list(given)
    return ["full_attention" if full(i) else "sliding_attention" for i in range(count)]


def windows(kinds: Sequence[LayerType], distance: int) -> tuple[int | None, ...]:
    """The largest distance of each layer; empty where all are full."""
    if "sliding_attention" not in kinds:
        return ()
    return tuple(distance if kind == "sliding_attention" else None for kind in kinds)
