"""The tolerances that an artifact was verified with, which whatever serves it is held to."""

from __future__ import annotations

from collections.abc import Mapping

from model.artifact.compare import Kind, Tolerance, tolerances_of
from model.artifact.manifest import Manifest
from model.artifact.verification import USES, Use


def recorded_tolerances(manifest: Manifest) -> Mapping[Kind, Tolerance]:
    """Those of the precision, and what the checkpoint's own rounding needs beyond."""
    return {**tolerances_of(manifest.precision, *manifest.depths), **measured(manifest)}


def passed_uses(manifest: Manifest) -> tuple[Use, ...]:
    """Return the uses whose verification passed."""
    return tuple(use for use in USES if manifest.verification.verdict(use).passed)


def measured(manifest: Manifest) -> dict[Kind, Tolerance]:
    """The kinds of tensors whose rounding was measured at the export, as a rule none."""
    if manifest.foreign:
        return {}
    usual, found = tolerances_of(manifest.precision, *manifest.depths), manifest.verification
    return {
        kind: Tolerance(**found.tolerances[kind])
        for kind, tolerance in usual.items()
        if kind in found.tolerances and found.tolerances[kind]["atol"] > tolerance.atol
    }
