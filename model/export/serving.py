"""Serving-only artifacts, and artifacts of two towers.

A serving-only artifact has only the tensors that a service without PyTorch reads. The artifact of a
text tower has the artifact of its vision tower inside.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import onnx
from onnx.external_data_helper import ExternalDataInfo, set_external_data
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
from model.artifact.verification import VerificationRecord
from model.checkpoint import read_tensors
from model.config.files import read_object
from model.errors import ArtifactError, CheckpointError
from model.export.shared_tensors import external
from model.sources.files import transformer_folder, weight_files

_PYTORCH_ALONE = {*FLOAT_WEIGHTS}
"""Files whose references to other files are not read by a service."""


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
    at = {
        (name, entry.offset): key
        for name in keys
        for key, entry in read_header(folder / name).own.items()
    }
    for name in DATA_OF.keys() & {*names} - _PYTORCH_ALONE:
        for file, key in _named(folder / name, at):
            keys[file].add(key)
    return keys


def _named(path: Path, at: dict[tuple[str, int], str]) -> Iterator[tuple[str, str]]:
    """Yield file and key of each tensor of float weights that a file names."""
    if path.name not in GRAPHS.values():
        for reference in read_header(path).shared.values():
            yield reference.file, reference.key
        return
    for stored in external(path):
        if (stored.location, stored.offset) in at:
            yield stored.location, at[stored.location, stored.offset]


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
    manifest = whole.manifest
    names = manifest.file_names
    served = served_tensors(whole.folder, names)
    for name, keys in served.items():
        tensors = mapped_tensors(whole.path(name))
        with writing(folder / name):
            save_file({key: tensors[key] for key in sorted(keys)}, folder / name)
    for name in names:
        if name in served:
            continue
        with writing(folder / name):
            if name in GRAPHS.values() and name in DATA_OF:
                _move_tensors(whole.path(name), folder / name, served)
            else:
                shutil.copyfile(whole.path(name), folder / name)
    for name in names:
        (folder / name).chmod(0o644)
    changed = {"files": records_of(folder, names), "serving_only": True}
    write_manifest(folder, manifest.model_copy(update=changed))


def _move_tensors(source: Path, target: Path, served: dict[str, set[str]]) -> None:
    """Write a graph with references to the new positions of its tensors in the files beside it."""
    before = {name: read_header(source.with_name(name)).own for name in served}
    after = {name: read_header(target.with_name(name)).own for name in served}
    key_at = {
        (name, entry.offset): key for name, own in before.items() for key, entry in own.items()
    }
    model = onnx.load(source, load_external_data=False)
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        info = ExternalDataInfo(tensor)
        if info.location in served:
            entry = after[info.location][key_at[info.location, info.offset or 0]]
            tensor.raw_data = b""
            set_external_data(tensor, info.location, entry.offset, entry.length)
            tensor.ClearField("raw_data")
    onnx.save_model(model, target)


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
    record_vision(folder, dual, place(folder / VISION, build, verify))


def record_vision(folder: Path, dual: DualConfig, vision: Artifact) -> None:
    """Write the comparison with the pictures of a vision tower to a text tower's manifest."""
    manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    own = dual.model_copy(update={"vision_sha256": vision.sha256})
    write_manifest(folder, manifest.model_copy(update={"dual": own}))
