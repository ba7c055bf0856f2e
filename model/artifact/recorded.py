"""Tolerances of an artifact's verification, which also hold for every engine that serves it."""

from __future__ import annotations

from collections.abc import Mapping

from model.artifact.manifest import Manifest
from model.config.precision import USES, Use
from model.numerics.comparison import Kind, Tolerance, tolerances_of


def recorded_tolerances(manifest: Manifest) -> Mapping[Kind, Tolerance]:
    """Return the precision's tolerances, widened by the checkpoint's own rounding error."""
    return {**tolerances_of(manifest.precision, *manifest.depths), **measured(manifest)}


def passed_uses(manifest: Manifest) -> tuple[Use, ...]:
    """Return the uses whose verification passed."""
    return tuple(use for use in USES if manifest.verification.verdict(use).passed)


def measured(manifest: Manifest) -> dict[Kind, Tolerance]:
    """Return the tolerances that rounding measured at export has widened; usually none."""
    usual, record = tolerances_of(manifest.precision, *manifest.depths), manifest.verification
    return {
        kind: Tolerance(**record.tolerances[kind])
        for kind, tolerance in usual.items()
        if kind in record.tolerances and record.tolerances[kind]["atol"] > tolerance.atol
    }
