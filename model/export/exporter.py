"""A checkpoint folder → an artifact folder.

The same checkpoint gives the same bytes wherever it is exported: graphs name no machine, and
files are written in a fixed order. Four things depend on the processor's arithmetic: how many bits
int8's weights have, the last bits of the golden tensors and of int8's scales, and what verification
measured of bf16 and int8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from model.artifact.batch import pack
from model.artifact.cache import exporter_version
from model.artifact.golden import GoldenText, Ids, golden_inputs, save_golden
from model.artifact.manifest import (
    ATTENTION_GRAPH,
    DEVICE_ATTENTION_GRAPH,
    DEVICE_POOLING_GRAPH,
    ENCODER_DATA,
    ENCODER_GRAPH,
    FILES,
    FORMAT,
    GOLDEN,
    HEADS,
    TOKENIZER,
    VECTOR_MODULES,
    WEIGHTS,
    Artifact,
    Manifest,
    Precision,
    VerificationRecord,
    load_artifact,
    record_file,
    write_manifest,
    writing,
)
from model.artifact.sentence import SentenceConfig
from model.artifact.signature import Float
from model.checkpoint import load_checkpoint
from model.encoder import Encoder
from model.export.calibration import calibration_batches
from model.export.graphs import (
    export_attention,
    export_device_attention,
    export_device_pooling,
    export_encoder,
    head_parameters,
    signatures,
)
from model.export.module_tensors import module_tensors
from model.export.placing import placing
from model.export.quantization import quantize
from model.export.to_onnx import save_graph
from model.export.verify import verify
from model.families.registry import read_config
from model.modules import transformer_folder
from model.packing import PackedBatch
from model.runtimes.contract import Device
from model.runtimes.registry import RUNTIMES, check_device, runtime_of, weight_bits
from model.tokenizer import load_tokenizer

Progress = Callable[[str], None]
_DTYPES: Mapping[Precision, Float] = {"fp16": "float16"}
"""Type of the weights and of tensors on a device, by precision; float32 for the others."""


@dataclass(frozen=True)
class Exported:
    """A new artifact and the result of its verification."""

    artifact: Artifact
    verification: VerificationRecord


def export(
    checkpoint: Path,
    out: Path,
    model: str,
    precision: Precision = "fp32",
    progress: Progress = lambda _: None,
    device: Device = "cpu",
) -> Exported:
    """Turn a checkpoint into an artifact, verify it, and put it at `out` in one step.

    An artifact that fails its verification is written too, with that result in its manifest; the
    service refuses it.

    Args:
        checkpoint: a Hugging Face folder.
        out: a folder that does not exist yet, or is empty.
        model: the name that the service will answer with.
        precision: of the encoder's arithmetic, which decides the runtime.
        progress: called with a line at each step.
        device: where it is verified; the graphs are the same.

    Raises:
        ModelError: the checkpoint is not usable, the device is not there, `out` is taken, or there
            is no room for it.

    """
    check_device(runtime_of(precision), device)
    with placing(out) as folder:
        _build(checkpoint, folder, model, precision, progress)
        progress("verifying ONNX against PyTorch")
        record = _verify(folder, device)
        progress("verified" if record.passed else "verification FAILED")
        exported = load_artifact(folder)
    return Exported(Artifact(out, exported.manifest, exported.sha256), record)


def _build(
    checkpoint: Path, folder: Path, model: str, precision: Precision, progress: Progress
) -> None:
    """Write all files; the manifest records no verification yet."""
    progress(f"reading {model}")
    inside = transformer_folder(checkpoint)
    config = read_config(inside)
    sentence = SentenceConfig.from_checkpoint(
        checkpoint, config.max_position_embeddings, config.hidden_size
    )
    encoder = load_checkpoint(inside)
    tokenizer = load_tokenizer(inside, config, lowercase=sentence.lowercase)
    with writing(path := folder / TOKENIZER):
        tokenizer.save(str(path), pretty=False)
    _save_tensors(dict(sorted(encoder.state_dict().items())), folder / WEIGHTS)
    _save_tensors(head_parameters(encoder), folder / HEADS)
    _save_tensors(module_tensors(checkpoint, sentence.modules), folder / VECTOR_MODULES)
    inputs = golden_inputs(tokenizer, config)
    save_golden(folder / GOLDEN, [golden_text(encoder, *text) for text in inputs])

    served, bits = encoder, weight_bits(precision)
    if bits is not None:
        progress("calibrating int8")
        served = quantize(encoder, calibration_batches(tokenizer, sentence.max_length), bits)
    _save_graphs(served, precision, folder, progress)
    for name in FILES:
        (folder / name).chmod(0o644)
    unverified = VerificationRecord(
        passed=False, provider="", inputs=0, tolerances={}, max_abs_diff_below={}, min_cosine={}
    )
    manifest = Manifest(
        format=FORMAT,
        model=model,
        runtime=runtime_of(precision),
        precision=precision,
        weight_bits=bits,
        exporter=exporter_version(),
        config=config,
        sentence=sentence,
        signature=signatures(config, _DTYPES.get(precision, "float32")),
        files={name: record_file(folder / name) for name in FILES},
        verification=unverified,
    )
    write_manifest(folder, manifest)


def _save_tensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    with writing(path):
        save_file(tensors, path)


def golden_text(encoder: Encoder, input_ids: Ids, segment_ids: Ids) -> GoldenText:
    """Hidden states and maps of one text; ids `[S]`."""
    with torch.inference_mode():
        batch = PackedBatch.of(pack([(input_ids, segment_ids)]))
        output = encoder(batch, output_attentions=True)
    hidden = torch.stack(list(output.hidden_states)).numpy()
    maps = torch.cat(list(output.attentions)).numpy()
    return GoldenText(input_ids, segment_ids, hidden, maps)


def _save_graphs(served: Encoder, precision: Precision, folder: Path, progress: Progress) -> None:
    config, dtype = served.config, _DTYPES.get(precision, "float32")
    progress(f"exporting {ENCODER_GRAPH}")
    three_axes = RUNTIMES[runtime_of(precision)].three_axes
    encoder = export_encoder(served, dtype, three_axes=three_axes)
    save_graph(encoder, folder / ENCODER_GRAPH, external=ENCODER_DATA)
    progress(f"exporting {ATTENTION_GRAPH}")
    save_graph(export_attention(config), folder / ATTENTION_GRAPH)
    progress("exporting the graphs for a device")
    save_graph(export_device_attention(config, dtype), folder / DEVICE_ATTENTION_GRAPH)
    save_graph(export_device_pooling(config, dtype), folder / DEVICE_POOLING_GRAPH)


def _verify(folder: Path, device: Device) -> VerificationRecord:
    """Verify an artifact and record the result in its manifest."""
    artifact = load_artifact(folder)
    record = verify(artifact, device).record()
    write_manifest(folder, artifact.manifest.model_copy(update={"verification": record}))
    return record
