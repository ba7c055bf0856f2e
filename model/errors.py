"""What can go wrong on the way from a checkpoint to an artifact.

    ModelError
    ├── ConfigError         the checkpoint's configuration is invalid or not supported
    ├── CheckpointError     files, keys or shapes do not make up the encoder
    ├── SourceError         a model name cannot be turned into a local checkpoint
    ├── ArtifactError       an artifact folder is incomplete, damaged or foreign
    ├── VerificationError   ONNX and PyTorch disagree beyond tolerance
    ├── ProviderError       the hardware that was asked for does not work here
    └── DeviceLostError     the hardware failed, and only another process can use it again

Each carries one line that tells its reader what to do about it.
"""


class ModelError(Exception):
    """Base of every error that `model` raises on purpose."""


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
