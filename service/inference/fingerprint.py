"""Fingerprint of a model, the same for all replicas of an artifact."""

from __future__ import annotations

import hashlib

from model.artifact.manifest import Artifact

FINGERPRINT_HEADER = "x-model-fingerprint"
EXPECT_HEADER = "x-expect-fingerprint"
FINGERPRINT_CHARACTERS = 16
STAND_IN = "PyTorch in place of the engine"


def fingerprint_of(
    artifact: Artifact, provider: str, prompts: str = "", *, stand_in: bool = False
) -> str:
    """Return the fingerprint of an artifact and its engine.

    A stand-in by PyTorch shares the fingerprint of an fp32 artifact's engine, as it agrees within
    the tolerance of the artifact's verification. For other precisions, it has its own. `prompts`
    are the service's own, which change the vectors of a text.
    """
    computed = STAND_IN if stand_in and artifact.manifest.precision != "fp32" else provider
    content = f"{artifact.sha256} {artifact.manifest.precision} {computed}{prompts}"
    return hashlib.sha256(content.encode()).hexdigest()[:FINGERPRINT_CHARACTERS]
