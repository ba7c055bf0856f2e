"""Fingerprint of a model: the same for every replica of an artifact, another for another model."""

from __future__ import annotations

import hashlib

from model.artifact.manifest import Artifact

FINGERPRINT_HEADER = "x-fingerprint"
FINGERPRINT_CHARACTERS = 16
STAND_IN = "PyTorch in place of the engine"


def fingerprint_of(artifact: Artifact, provider: str, *, stand_in: bool = False) -> str:
    """Return the fingerprint of what computes an artifact's vectors.

    PyTorch computes an fp32 artifact within the tolerance that the artifact was verified with, so a
    stand-in has the fingerprint of the engine that it replaces; with another precision, its own.

    Args:
        artifact: of the model; its SHA-256 covers the model's name, its weights and its precision.
        provider: that the artifact's engine computes on.
        stand_in: whether PyTorch answers in place of that engine.

    """
    computed = STAND_IN if stand_in and artifact.manifest.precision != "fp32" else provider
    content = f"{artifact.sha256} {artifact.manifest.precision} {computed}"
    return hashlib.sha256(content.encode()).hexdigest()[:FINGERPRINT_CHARACTERS]
