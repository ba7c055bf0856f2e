"""Errors between a checkpoint and a computed batch.

    ModelError
    ├── ConfigError         the checkpoint's configuration is invalid or not supported
    ├── CheckpointError     files, keys or shapes do not make up the encoder
    ├── SourceError         a model name cannot be turned into a local checkpoint
    ├── ArtifactError       an artifact folder is incomplete, damaged or foreign
    ├── VerificationError   ONNX and PyTorch disagree beyond tolerance
    ├── ProviderError       the hardware that was asked for does not work here
    └── DeviceLostError     the hardware failed, and only another process can use it again

Each message is one line, with the remedy where there is one.
"""


class ModelError(Exception):
    """Base of all errors of `model`."""


class ConfigError(ModelError):
    """The checkpoint's configuration is invalid or not supported."""


class CheckpointError(ModelError):
    """The checkpoint's files, keys or shapes do not make up the encoder."""


class SourceError(ModelError):
    """A model name cannot be turned into a local checkpoint."""


class ArtifactError(ModelError):
    """An artifact folder is incomplete, damaged or foreign."""


class VerificationError(ModelError):
    """ONNX and PyTorch disagree beyond the stated tolerance."""


class ProviderError(ModelError):
    """The hardware that was asked for does not work here."""


class DeviceLostError(ModelError):
    """The hardware failed, and only another process can use it again."""
