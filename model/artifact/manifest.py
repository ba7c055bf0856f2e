"""Artifact folder: everything a service needs to serve one encoder.

docs/artifact.md describes its files, and this module names them. It is where `model` and `service`
meet, and imports neither torch nor onnxruntime.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from pydantic import ValidationError

from model.artifact.integrity import check_file, check_locations, check_references, sha256_of
from model.artifact.sentence import SentenceConfig
from model.artifact.signature import OF_DECODER, GraphName, GraphSignature
from model.artifact.verification import VerificationRecord
from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig, Part, StaticConfig
from model.config.precision import USES, Precision, Use, WeightBits
from model.errors import ArtifactError
from model.images.processing import ImageProcessing
from model.numerics.comparison import Kind, Tolerance, tolerances_of
from model.numerics.task_head import TaskConfig

MANIFEST = "manifest.json"
VISION = "vision"
"""Folder of the vision tower's artifact, inside the text tower's."""
ENCODER_DATA = "encoder.onnx.data"
HEADS = "heads.safetensors"
WEIGHTS = "weights.safetensors"
GOLDEN = "golden.safetensors"
VECTOR_MODULES = "modules.safetensors"
TOKENIZER = "tokenizer.json"
TARGET_TOKENIZER = "target_tokenizer.json"
TASK_WEIGHTS = "task.safetensors"
DECODER_DATA = "decoder.onnx.data"
DECODER_HEADS = "decoder_heads.safetensors"
DECODER_WEIGHTS = "decoder.safetensors"
GRAPHS: dict[GraphName, str] = {name: f"{name}.onnx" for name in get_args(GraphName)}
TASK_FILES = (GRAPHS["task"], TASK_WEIGHTS)
"""Files of a task head."""
DECODER_FILES = (
    *(GRAPHS[name] for name in OF_DECODER),
    *(DECODER_DATA, DECODER_HEADS, DECODER_WEIGHTS),
)
"""Files of a decoder."""
FILES = (
    *(
        name
        for name in GRAPHS.values()
        if name not in (GRAPHS["vectors"], *TASK_FILES, *DECODER_FILES)
    ),
    *(ENCODER_DATA, HEADS, WEIGHTS, GOLDEN, VECTOR_MODULES, TOKENIZER),
)
"""Files of every artifact with graphs."""
TABLE = "table.safetensors"
STATIC_FILES = (TABLE, VECTOR_MODULES, TOKENIZER)
"""Files of a static embedding."""
FLOAT_WEIGHTS = (WEIGHTS, TASK_WEIGHTS, DECODER_WEIGHTS)
"""Files of the float32 modules; serving reads only the tensors that graphs and heads name."""
_OF_DECODING = (ENCODER_DATA, DECODER_DATA, WEIGHTS, DECODER_WEIGHTS)
DATA_OF: dict[str, tuple[str, ...]] = {
    GRAPHS["encoder"]: (ENCODER_DATA, WEIGHTS),
    GRAPHS["vectors"]: (ENCODER_DATA, WEIGHTS),
    HEADS: (WEIGHTS,),
    GRAPHS["task"]: (WEIGHTS, TASK_WEIGHTS),
    TASK_WEIGHTS: (WEIGHTS,),
    GRAPHS["decoder"]: _OF_DECODING,
    GRAPHS["logprobs"]: _OF_DECODING,
    DECODER_WEIGHTS: (WEIGHTS,),
    DECODER_HEADS: (WEIGHTS, DECODER_WEIGHTS),
}
"""File → files beside it that may hold some of its tensors; other files are self-contained."""
FORMAT: Literal[12] = 12

ArtifactRuntimeName = Literal["onnx", "openvino", "static"]
RuntimeName = Literal[ArtifactRuntimeName, "pytorch"]


class DualConfig(Part):
    """Comparison of a text with a picture, in the artifact of the text tower."""

    kind: Literal["clip", "siglip"]
    """Comparison: with "clip", the softmax of a picture's logits over texts gives probabilities;
    with "siglip", the sigmoid of each logit."""
    logit_scale: float
    """Factor of the cosine of both vectors, e to the power of the checkpoint's parameter."""
    logit_bias: float = 0.0
    """Addend of the scaled cosine, which gives the logit."""
    vision_sha256: str
    """SHA-256 of `vision/manifest.json`."""


class FileRecord(Part):
    """Hash and size of a file of the artifact."""

    sha256: str
    bytes: int
    serving_bytes: int | None = None
    """Bytes that a service without PyTorch reads; all when None."""


class Manifest(Part):
    """Content of `manifest.json`."""

    format: Literal[12]
    model: str
    runtime: ArtifactRuntimeName
    """Runtime that the artifact is exported for."""
    precision: Precision
    """Precision of the encoder's arithmetic."""
    weight_bits: WeightBits | None = None
    """Bits of int8's weights: 7 are exact on every processor, 8 where products do not saturate."""
    exporter: str
    """SHA-256 of the exporter's own source and of the versions of its libraries."""
    config: EncoderConfig | StaticConfig
    sentence: SentenceConfig
    task: TaskConfig | None = None
    """Config of the task head; None without one."""
    decoder: DecoderConfig | None = None
    """Config of the decoder over the encoder's last hidden state; None without one."""
    images: ImageProcessing | None = None
    """Preprocessing of pictures; None for a model of texts."""
    dual: DualConfig | None = None
    """Comparison with pictures, whose encoder is in the folder `vision/`; None without one."""
    own_target_tokenizer: bool = False
    """Whether the decoder's texts have another tokenizer than the encoder's."""
    signature: dict[GraphName, GraphSignature]
    files: dict[str, FileRecord]
    weights_sha256: str
    """SHA-256 of the whole `weights.safetensors`, of which a serving-only artifact has a part; of
    the table for a static embedding."""
    serving_only: bool = False
    """Whether the tensors that only PyTorch and decompositions read are omitted."""
    verification: VerificationRecord

    @property
    def static(self) -> bool:
        """Whether the model is a static embedding, which has no layers and no heads."""
        return self.runtime == "static"

    @property
    def vectors_pooling(self) -> object:
        """Pooling of the usual request, which a graph of vectors computes."""
        return self.task.pooling if self.task else self.sentence.pooling

    @property
    def depths(self) -> tuple[int, int]:
        """Number of layers of the encoder, and of the decoder; 0 without one."""
        layers = self.decoder.layers.num_hidden_layers if self.decoder else 0
        return self.config.num_hidden_layers, layers

    @property
    def file_names(self) -> tuple[str, ...]:
        """Names of the artifact's files beside its manifest."""
        if self.static:
            return STATIC_FILES
        own = tuple(name for name in FILES if not (self.images and name == TOKENIZER))
        of_vectors = (GRAPHS["vectors"],) if "vectors" in self.signature else ()
        of_task = TASK_FILES if self.task else ()
        of_decoder = DECODER_FILES if self.decoder else ()
        of_targets = (TARGET_TOKENIZER,) if self.own_target_tokenizer else ()
        return (*own, *of_vectors, *of_task, *of_decoder, *of_targets)


@dataclass(frozen=True)
class Artifact:
    """Artifact folder whose files have the hashes in its manifest."""

    folder: Path
    manifest: Manifest
    sha256: str
    """SHA-256 of `manifest.json`, which holds the hashes of all other files."""
    vision: Artifact | None = None
    """Artifact of the vision tower beside a text tower; None without one."""

    @property
    def towers(self) -> tuple[Artifact, ...]:
        """The artifact itself, and the artifact of its vision tower if there is one."""
        return (self,) if self.vision is None else (self, self.vision)

    @property
    def passed(self) -> bool:
        """Whether the verification of each tower passed for at least one use."""
        return all(tower.manifest.verification.passed for tower in self.towers)

    def at(self, folder: Path) -> Artifact:
        """Return the artifact in another folder, to which it was moved."""
        vision = self.vision and self.vision.at(folder / VISION)
        return replace(self, folder=folder, vision=vision)

    def path(self, name: str) -> Path:
        """Return the path of the file `name`, one of `Manifest.file_names`."""
        return self.folder / name


def load_artifact(folder: Path) -> Artifact:
    """Read an artifact and verify every byte of it.

    Raises:
        ArtifactError: the manifest is missing or invalid; or a file is missing, a link, or not the
            exported one. The message is one line and names the file.

    """
    path = folder / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise ArtifactError(f"{folder} is not an artifact: it holds no {MANIFEST}")
    content = path.read_bytes()
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "content"
        if where == "format":
            raise ArtifactError(
                f"{path} is invalid: format: this version reads {FORMAT}; export the model again"
            ) from None
        raise ArtifactError(f"{path} is invalid: {where}: {first['msg']}") from None
    names = manifest.file_names
    if set(manifest.files) != set(names):
        raise ArtifactError(f"{path} does not list exactly {', '.join(names)}")
    records = {name: (record.sha256, record.bytes) for name, record in manifest.files.items()}
    with ThreadPoolExecutor() as threads:  # hashing releases the GIL
        list(threads.map(lambda name: check_file(folder / name, *records[name]), names))
    for name in names:
        beside = [data for data in DATA_OF.get(name, ()) if data in names]
        if name in GRAPHS.values():
            check_locations(folder / name, beside)
        elif name.endswith(".safetensors"):
            check_references(folder / name, beside)
    vision = None if manifest.dual is None else _load_vision(folder, manifest.dual)
    return Artifact(folder, manifest, hashlib.sha256(content).hexdigest(), vision)


def _load_vision(folder: Path, dual: DualConfig) -> Artifact:
    """Read the vision tower of an artifact, as `load_artifact` does."""
    if (folder / VISION).is_symlink():
        raise ArtifactError(f"{folder / VISION} is a link, not a folder")
    vision = load_artifact(folder / VISION)
    if vision.sha256 != dual.vision_sha256:
        raise ArtifactError(f"{vision.folder / MANIFEST} is not the exported one: export it again")
    if vision.manifest.dual is not None or not vision.manifest.config.pixel_features:
        raise ArtifactError(f"{vision.folder} is not an artifact of a vision tower")
    return vision


def record_file(path: Path) -> FileRecord:
    """Return the hash and size of a file."""
    return FileRecord(sha256=sha256_of(path), bytes=path.stat().st_size)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json` atomically."""
    temporary = folder / f".{MANIFEST}.part"
    temporary.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    temporary.replace(folder / MANIFEST)


def place(
    out: Path,
    build: Callable[[Path], None],
    verify: Callable[[Artifact], VerificationRecord],
) -> Artifact:
    """Build an artifact in a folder beside `out`, verify it, and move it there in one step.

    An artifact that fails its verification is moved too, with the result in its manifest. `build`
    writes all files to a folder, and a manifest without a verification.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ArtifactError(f"{out} exists and is not an empty folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        folder = Path(scratch) / "artifact"
        folder.mkdir()
        build(folder)
        artifact = load_artifact(folder)
        for name in artifact.manifest.files:
            artifact.path(name).chmod(0o644)
        record = verify(artifact)
        write_manifest(folder, artifact.manifest.model_copy(update={"verification": record}))
        artifact = load_artifact(folder)
        try:
            folder.rename(out)  # replaces an empty folder, but never another export
        except OSError:
            raise ArtifactError(f"{out} was taken while this export ran") from None
        return artifact.at(out)


LEAST_SHARED_BYTES = 2**20
"""Minimum size of a file that is searched for in other artifacts."""


def share_files(artifact: Artifact, folders: Iterable[Path]) -> None:
    """Replace large files of an artifact by hard links to identical files of other artifacts.

    A file that differs from its manifest's record or cannot be linked is left alone. Others may
    read the artifact at the same time, as each file is replaced atomically.
    """
    wanted = {
        record.sha256: artifact.path(name)
        for name, record in artifact.manifest.files.items()
        if record.bytes >= LEAST_SHARED_BYTES
    }
    for folder in folders:
        for source, sha256 in _recorded(folder):
            target = wanted.get(sha256)
            if target is not None and _link(source, target, sha256):
                del wanted[sha256]


def _recorded(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of an artifact of any format version, with the SHA-256s in its manifest."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        for name, record in json.loads((folder / MANIFEST).read_bytes())["files"].items():
            yield folder / Path(name).name, record["sha256"]


def _link(source: Path, target: Path, sha256: str) -> bool:
    """Replace the target by a hard link to the source; return whether that was possible."""
    scratch = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if source.is_symlink() or source.samefile(target) or sha256_of(source) != sha256:
            return False
        os.link(source, scratch)
    except OSError:
        return False
    try:
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)
    return True


def passed_uses(manifest: Manifest) -> tuple[Use, ...]:
    """Return the uses whose verification passed."""
    return tuple(use for use in USES if manifest.verification.verdict(use).passed)


def recorded_tolerances(manifest: Manifest) -> Mapping[Kind, Tolerance]:
    """Return the precision's tolerances, widened by the checkpoint's own rounding error."""
    return {**tolerances_of(manifest.precision, *manifest.depths), **measured(manifest)}


def measured(manifest: Manifest) -> dict[Kind, Tolerance]:
    """Return the tolerances that rounding measured at export has widened; usually none."""
    usual, record = tolerances_of(manifest.precision, *manifest.depths), manifest.verification
    return {
        kind: Tolerance(**record.tolerances[kind])
        for kind, tolerance in usual.items()
        if kind in record.tolerances and record.tolerances[kind]["atol"] > tolerance.atol
    }
