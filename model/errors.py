"""Errors of loading, exporting and computing a model.

Each message is one line, with the remedy if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence


class ModelError(Exception):
    """Base of all errors of `model`."""


class ConfigError(ModelError):
    """Invalid or unsupported configuration of a checkpoint."""


class CheckpointError(ModelError):
    """Files, keys or shapes of a checkpoint that do not fit the encoder."""


class ImageError(ModelError):
    """File that is not a picture, or a picture that is not accepted."""


class SourceError(ModelError):
    """Model name that cannot be resolved to a local checkpoint."""


class UnreachableError(SourceError):
    """Hub that does not answer, or that cannot serve now."""


class ArtifactError(ModelError):
    """Artifact folder that is incomplete, damaged or unusable."""


class VerificationError(ModelError):
    """Disagreement of ONNX and PyTorch beyond the stated tolerance."""


class ProviderError(ModelError):
    """Requested hardware that does not work here."""


class DeviceLostError(ModelError):
    """Failure of the hardware, which only a new process can use again."""


def shortened(names: Sequence[str], limit: int = 3) -> str:
    """Return the first names, and the number of the others, for an error message."""
    remainder = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + remainder
