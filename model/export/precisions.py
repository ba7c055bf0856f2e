"""Which checkpoints are exported in which precisions."""

from __future__ import annotations

from model.artifact.manifest import Precision
from model.errors import ConfigError
from model.families.registry import FAMILIES

_OF_DECODERS: tuple[Precision, ...] = ("fp32", "fp16")


def check_precision(precision: Precision, model_type: str, *, decoder: bool) -> None:
    """Refuse a precision that a checkpoint is not exported in.

    Args:
        precision: that is asked for.
        model_type: of its `config.json`.
        decoder: whether it has a decoder.

    Raises:
        ConfigError: names those that it is exported in.

    """
    family = FAMILIES.get(model_type)
    if precision == "fp16" and family and not family.half:
        raise ConfigError(
            f"{model_type} is not exported in fp16, as its hidden states exceed half precision's "
            "65,504; export it in fp32"
        )
    precisions = [each for each in _OF_DECODERS if each != "fp16" or not family or family.half]
    if decoder and precision not in precisions:
        raise ConfigError(
            f"an encoder–decoder is exported in {' or '.join(precisions)}, not {precision}"
        )
