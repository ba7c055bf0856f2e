"""Serving-only artifacts, and artifacts of two towers.

A serving-only artifact has only the tensors that a service without PyTorch reads. The artifact of a
text tower has the artifact of its vision tower inside.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import onnx
from safetensors.numpy import save_file

from model.artifact.integrity import writing
from model.artifact.manifest import (
    DATA_OF,
    FLOAT_WEIGHTS,
    GRAPHS,
    MANIFEST,
    VISION,
    Artifact,
    DualConfig,
    FileRecord,
    Manifest,
    place,
    record_file,
    write_manifest,
)
from model.artifact.mapped import mapped_tensors, read_header
from model.checkpoint import folder_tensors
from model.errors import ArtifactError, CheckpointError
from model.export.shared_tensors import external, places_of, refer, stored
from model.sources.files import encoder_fields, transformer_folder


def records_of(folder: Path, names: Sequence[str]) -> dict[str, FileRecord]:
    """Return hash and size of an artifact's files, with the served bytes of float weights."""
    records = {name: record_file(folder / name) for name in names}
    for name, keys in served_tensors(folder, names).items():
        own = read_header(folder / name).own
        size = sum(own[key].length for key in keys)
        records[name] = records[name].model_copy(update={"serving_bytes": size})
    return records


def served_tensors(folder: Path, names: Sequence[str]) -> dict[str, set[str]]:
    """Return the keys of the float weights that a graph or a head names, by file."""
    keys: dict[str, set[str]] = {name: set() for name in FLOAT_WEIGHTS if name in names}
    at = {(name, place.offset): place.key for name in keys for place in stored(folder / name)}
    for name in DATA_OF.keys() & {*names} - {*FLOAT_WEIGHTS}:  # those only PyTorch reads
        if name in GRAPHS.values():
            places = [(place.location, place.offset) for place in external(folder / name)]
            named = [(place[0], at[place]) for place in places if place in at]
        else:
            shared = read_header(folder / name).shared.values()
            named = [(reference.file, reference.key) for reference in shared]
        for file, key in named:
            keys[file].add(key)
    return keys


def serving_copy(whole: Artifact, out: Path) -> Artifact:
    """Write an artifact without the tensors that only PyTorch and decompositions read.

    Raises:
        ArtifactError: the artifact is static or already serving-only, or `out` exists and is not
            empty, or the disk is full.

    """
    if whole.manifest.static:
        raise ArtifactError(
            "--serving-only is for transformers: a static embedding has no tensors that only "
            "PyTorch reads"
        )
    if whole.manifest.serving_only:
        raise ArtifactError(f"{whole.folder} was already exported with --serving-only")
    vision, dual = whole.vision, whole.manifest.dual

    def build(folder: Path) -> None:
        _build(whole, folder)
        if vision is not None and dual is not None:
            record_vision(folder, dual, serving_copy(vision, folder / VISION))

    return place(out, build, lambda _: whole.manifest.verification)


def _build(whole: Artifact, folder: Path) -> None:
    manifest, names = whole.manifest, whole.manifest.file_names
    served = served_tensors(whole.folder, names)
    for name in sorted(names, key=lambda name: name not in served):  # graphs refer to these
        source, target = whole.path(name), folder / name
        with writing(target):
            if name in served:
                tensors = mapped_tensors(source)
                save_file({key: tensors[key] for key in sorted(served[name])}, target)
            elif name in GRAPHS.values() and name in DATA_OF:
                graph = onnx.load(source)
                refer(graph, places_of([*(folder / file for file in served), source]))
                onnx.save_model(graph, target)
            else:
                shutil.copyfile(source, target)
    changed = {"files": records_of(folder, names), "serving_only": True}
    write_manifest(folder, manifest.model_copy(update=changed))


_KINDS: dict[str, Literal["clip", "siglip"]] = {"clip": "clip", "siglip": "siglip"}
_SCALE, _BIAS = "logit_scale", "logit_bias"


def read_dual(checkpoint: Path) -> DualConfig:
    """Return the comparison of texts with pictures of a checkpoint, without a vision tower yet."""
    inside = transformer_folder(checkpoint)
    kind = _KINDS[str(encoder_fields(checkpoint)["model_type"])]
    wanted = {_SCALE, _BIAS} if kind == "siglip" else {_SCALE}
    stored = folder_tensors(inside, wanted.__contains__)
    found = {key: float(tensor) for key, tensor in stored.items() if tensor.numel() == 1}
    for key in sorted(wanted):
        if not math.isfinite(found.get(key, math.nan)):
            raise CheckpointError(f"{checkpoint}: {key} is missing, or not one finite number")
    scale = math.exp(found[_SCALE])
    return DualConfig(
        kind=kind, logit_scale=scale, logit_bias=found.get(_BIAS, 0.0), vision_sha256=""
    )


def record_vision(folder: Path, dual: DualConfig, vision: Artifact) -> None:
    """Write the comparison with the pictures of a vision tower to a text tower's manifest."""
    manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    own = dual.model_copy(update={"vision_sha256": vision.sha256})
    write_manifest(folder, manifest.model_copy(update={"dual": own}))
