"""Errors of loading, exporting and computing a model.

    ModelError
        ├── ConfigError         the checkpoint's configuration is invalid or not supported
        ├── CheckpointError     files, keys or shapes do not fit the encoder
        ├── ImageError          a file is not a picture that can be opened
        ├── SourceError         a model name cannot be resolved to a local checkpoint
        ├── ArtifactError       an artifact folder is incomplete, damaged or unusable
        ├── VerificationError   ONNX and PyTorch disagree beyond tolerance
        ├── ProviderError       the requested hardware does not work here
        └── DeviceLostError     the hardware failed, and only a new process can use it again

Each message is one line, with the remedy if there is one.
"""


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


class ArtifactError(ModelError):
    """Artifact folder that is incomplete, damaged or unusable."""


class VerificationError(ModelError):
    """Disagreement of ONNX and PyTorch beyond the stated tolerance."""


class ProviderError(ModelError):
    """Requested hardware that does not work here."""


class DeviceLostError(ModelError):
    """Failure of the hardware, which only a new process can use again."""
