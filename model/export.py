"""A checkpoint folder → an artifact folder.

The same checkpoint gives the same bytes wherever it is exported: graphs name no machine, and
files are written in a fixed order. Two things depend on the processor's arithmetic: what
verification measured of bf16 and int8, and the last bits of int8's scales.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from model.artifact import (
    ATTENTION_GRAPH,
    ENCODER_DATA,
    ENCODER_GRAPH,
    FILES,
    HEADS,
    RUNTIMES,
    TOKENIZER,
    WEIGHTS,
    Artifact,
    Manifest,
    Precision,
    VerificationRecord,
    load_artifact,
    record_file,
    write_manifest,
)
from model.attention import MultiHeadAttention
from model.cache import exporter_version
from model.calibration import calibration_batches
from model.checkpoint import load_checkpoint
from model.encoder import Encoder
from model.errors import ArtifactError
from model.graphs import export_attention, export_encoder, one_head_shapes, save_graph
from model.quantization import quantize
from model.sentence import SentenceConfig
from model.signature import attention_signature, encoder_signature, head_parameter_name
from model.tokenizer import load_tokenizer
from model.verify import verify

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Exported:
    """A fresh artifact and how its verification went."""

    artifact: Artifact
    verification: VerificationRecord


def export(
    checkpoint: Path,
    out: Path,
    model: str,
    precision: Precision = "fp32",
    progress: Progress = lambda _: None,
) -> Exported:
    """Turn a checkpoint into an artifact, verify it, and put it at `out` in one step.

    An artifact that fails its verification is written all the same, and says so in its
    manifest; it is the service that refuses it.

    Args:
        checkpoint: a Hugging Face folder.
        out: a folder that does not exist yet, or is empty.
        model: the name that the service will answer with.
        precision: of the encoder's arithmetic; what is not exact is for OpenVINO.
        progress: is told each step.

    Raises:
        ModelError: the checkpoint is not usable, or `out` is taken.

    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ArtifactError(f"{out} exists and is not an empty folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        folder = Path(scratch) / "artifact"
        folder.mkdir()
        exported = _build(checkpoint, folder, model, precision, progress)
        try:
            folder.rename(out)  # over an empty folder, but never over another's export
        except OSError:
            raise ArtifactError(f"{out} was taken while this export ran") from None
    return Exported(
        Artifact(out, exported.artifact.manifest, exported.artifact.sha256), exported.verification
    )


def _build(
    checkpoint: Path, folder: Path, model: str, precision: Precision, progress: Progress
) -> Exported:
    progress(f"reading {model}")
    encoder = load_checkpoint(checkpoint)
    config = encoder.config
    sentence = SentenceConfig.from_checkpoint(checkpoint, config.max_position_embeddings)
    tokenizer = load_tokenizer(checkpoint, config, lowercase=sentence.lowercase)
    tokenizer.save(str(folder / TOKENIZER), pretty=False)
    save_file(dict(sorted(encoder.state_dict().items())), folder / WEIGHTS)
    save_file(head_parameters(encoder), folder / HEADS)

    engine = RUNTIMES[precision]
    served = encoder
    if precision == "int8":
        progress("calibrating int8")
        served = quantize(encoder, calibration_batches(tokenizer, sentence.max_length))
    progress("exporting encoder.onnx")
    signatures = {"encoder": encoder_signature(config)}
    save_graph(export_encoder(served, engine), folder / ENCODER_GRAPH, external=ENCODER_DATA)
    progress("exporting attention.onnx")
    signatures["attention"] = attention_signature(config, one_head_shapes(config))
    save_graph(export_attention(config), folder / ATTENTION_GRAPH)

    unverified = VerificationRecord(
        passed=False, inputs=0, tolerances={}, max_abs_diff_below={}, min_cosine={}
    )
    manifest = Manifest.model_validate(
        {
            "format": 1,
            "model": model,
            "engine": engine,
            "precision": precision,
            "exporter": exporter_version(),
            "config": config,
            "sentence": sentence,
            "signature": signatures,
            "files": {name: record_file(folder / name) for name in FILES},
            "verification": unverified,
        }
    )
    for name in FILES:
        (folder / name).chmod(0o644)
    write_manifest(folder, manifest)
    progress("verifying ONNX against PyTorch")
    record = verify(load_artifact(folder)).record()
    write_manifest(folder, manifest.model_copy(update={"verification": record}))
    progress("verified" if record.passed else "verification FAILED")
    return Exported(load_artifact(folder), record)


def head_parameters(encoder: Encoder) -> dict[str, Tensor]:
    """Every layer's query, key and score parameters; axis 0 is always heads."""
    tensors = {}
    n = encoder.config.num_attention_heads
    for index in range(encoder.config.num_hidden_layers):
        attention: MultiHeadAttention = encoder.layers[index].attention  # type: ignore[assignment]
        parameters = {
            f"{role}_{name}": tensor.reshape(n, -1, *tensor.shape[1:])
            for role, projection in (("query", attention.query), ("key", attention.key))
            for name, tensor in (("weight", projection.weight), ("bias", projection.bias))
        }
        for name, tensor in attention.score_parameters.items():
            parameters[f"score_{name}"] = tensor
        for name, tensor in parameters.items():
            tensors[head_parameter_name(name, index)] = tensor.contiguous()
    return tensors
