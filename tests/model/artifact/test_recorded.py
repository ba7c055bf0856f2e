"""Tolerances in a manifest: the precision's, or measured ones."""

from __future__ import annotations

from model.artifact.manifest import Artifact
from model.artifact.recorded import measured, recorded_tolerances
from model.numerics.comparison import Tolerance, tolerances_of


def test_only_what_was_widened_is_the_manifests(tiny_artifact: Artifact) -> None:
    manifest = tiny_artifact.manifest
    usual = tolerances_of("fp32", *manifest.depths)
    assert measured(manifest) == {}
    assert recorded_tolerances(manifest) == usual
    wide = {"atol": 3e-4, "rtol": 0.0, "cosine_at_least": 0.99999}
    narrow = {"atol": 1e-9, "rtol": 0.0, "cosine_at_least": 1.0}
    record = manifest.verification.model_copy(
        update={"tolerances": {"attention": wide, "hidden": narrow, "pooled": narrow}}
    )
    changed = manifest.model_copy(update={"verification": record})
    assert measured(changed) == {"attention": Tolerance(**wide)}
    assert recorded_tolerances(changed) == {**usual, "attention": Tolerance(**wide)}
