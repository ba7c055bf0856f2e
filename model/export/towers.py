"""Export of two towers: the text tower's artifact, with the vision tower's artifact inside."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from model.artifact.manifest import MANIFEST, VISION, Artifact, DualConfig, Manifest, write_manifest
from model.artifact.verification import VerificationRecord
from model.checkpoint import read_tensors
from model.config.files import read_object
from model.errors import CheckpointError
from model.export.placement import place
from model.sources.files import transformer_folder, weight_files

_KINDS: dict[str, Literal["clip", "siglip"]] = {"clip": "clip", "siglip": "siglip"}
_SCALE, _BIAS = "logit_scale", "logit_bias"


def read_dual(checkpoint: Path) -> DualConfig:
    """Return the comparison of texts with pictures of a checkpoint, without a vision tower yet."""
    inside = transformer_folder(checkpoint)
    kind = _KINDS[str(read_object(inside / "config.json")["model_type"])]
    wanted = {_SCALE, _BIAS} if kind == "siglip" else {_SCALE}
    found: dict[str, float] = {}
    for path in weight_files(inside):
        for key, tensor in read_tensors(path, wanted.__contains__).items():
            if tensor.numel() == 1:
                found[key] = float(tensor)
    for key in sorted(wanted):
        if not math.isfinite(found.get(key, math.nan)):
            raise CheckpointError(f"{checkpoint}: {key} is missing, or not one finite number")
    scale = math.exp(found[_SCALE])
    return DualConfig(
        kind=kind, logit_scale=scale, logit_bias=found.get(_BIAS, 0.0), vision_sha256=""
    )


def add_vision(
    folder: Path,
    dual: DualConfig,
    build: Callable[[Path], None],
    verify: Callable[[Artifact], VerificationRecord],
) -> None:
    """Build and verify the vision tower inside a text tower's folder, and record it there."""
    record_vision(folder, dual, place(folder / VISION, build, verify).artifact)


def record_vision(folder: Path, dual: DualConfig, vision: Artifact) -> None:
    """Write the comparison with the pictures of a vision tower to a text tower's manifest."""
    manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    own = dual.model_copy(update={"vision_sha256": vision.sha256})
    write_manifest(folder, manifest.model_copy(update={"dual": own}))
