"""Rejection of uses that failed an artifact's verification."""

from __future__ import annotations

from collections.abc import Mapping

from model.artifact.manifest import Manifest
from model.config.precision import Use
from service.errors import NotVerified

NAMES: Mapping[Use, str] = {
    "vectors": "vectors",
    "heads": "attention weights and hidden states",
}
"""Use → name in messages."""


def check_use(manifest: Manifest, use: Use) -> None:
    """Reject a use that failed the artifact's verification."""
    verdict = manifest.verification.verdict(use)
    if verdict.passed:
        return
    raise NotVerified(
        f"this {manifest.precision} artifact is not served for {NAMES[use]}, which failed its "
        f"verification ({verdict.failed}): serve an export in fp32, or pass --allow-unverified"
    )
