"""Precisions that a checkpoint can be exported in."""

from __future__ import annotations

from model.config.precision import Precision
from model.errors import ConfigError
from model.families.registry import FAMILIES

_OF_DECODERS: tuple[Precision, ...] = ("fp32", "fp16")


def check_precision(precision: Precision, model_type: str, *, decoder: bool) -> None:
    """Raise an error if a checkpoint cannot be exported in a precision.

    Args:
        precision: requested precision.
        model_type: model type in its `config.json`.
        decoder: whether it has a decoder.

    Raises:
        ConfigError: the precision is not supported; the message names those that are.

    """
    family = FAMILIES.get(model_type)
    if precision == "fp16" and family and not family.half:
        raise ConfigError(
            f"{model_type} is not exported in fp16, as its hidden states exceed half precision's "
            "65,504; export it in fp32"
        )
    precisions = [name for name in _OF_DECODERS if name != "fp16" or not family or family.half]
    if decoder and precision not in precisions:
        raise ConfigError(
            f"an encoder–decoder is exported in {' or '.join(precisions)}, not {precision}"
        )
