"""Uses that an artifact is not served for."""

from __future__ import annotations

from collections.abc import Mapping

from model.artifact.manifest import Manifest
from model.artifact.verification import Use
from service.errors import NotVerified

NAMES: Mapping[Use, str] = {
    "vectors": "vectors",
    "heads": "attention weights and hidden states",
}
"""Names of uses in messages."""


def check_use(manifest: Manifest, use: Use) -> None:
    """Refuse a use that failed the artifact's verification.

    Raises:
        NotVerified: with the figure that is beyond its bound.

    """
    verdict = manifest.verification.verdict(use)
    if not verdict.passed:
        raise NotVerified(
            f"this {manifest.precision} artifact is not served for {NAMES[use]}, which failed its "
            f"verification ({verdict.failed}): serve an export in fp32, or pass --allow-unverified"
        )
