"""Export of a checkpoint folder to an artifact folder.

The same checkpoint gives the same bytes on every machine: graphs name no machine, and files are
written in a fixed order. Seven things depend on the processor's arithmetic: the number of bits of
int8's weights; the last bits of the golden tensors, of the calibration texts' vectors, of int8's
scales and of projections of relative positions; the figures of bf16's and int8's verification; and
the tolerances of a checkpoint with large rounding errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import torch
from tokenizers import Tokenizer

from model.artifact.golden import GoldenText, save_golden
from model.artifact.integrity import exporter_version, writing
from model.artifact.manifest import (
    DATA_OF,
    DECODER_DATA,
    DECODER_HEADS,
    DECODER_WEIGHTS,
    ENCODER_DATA,
    FORMAT,
    GOLDEN,
    GRAPHS,
    HEADS,
    TARGET_TOKENIZER,
    TASK_WEIGHTS,
    TOKENIZER,
    VECTOR_MODULES,
    VISION,
    WEIGHTS,
    Artifact,
    Manifest,
    place,
    write_manifest,
)
from model.artifact.signature import Float, PackedPooling
from model.artifact.vectors import CALIBRATION
from model.artifact.verification import UNVERIFIED, VerificationRecord, verdict_lines
from model.config.precision import Precision, WeightBits
from model.encoder.encoder import Encoder
from model.errors import ConfigError
from model.export.graphs import (
    decoder_head_parameters,
    export_decoder,
    export_encoder,
    export_task,
    head_parameters,
    signatures,
    weightless_graphs,
)
from model.export.loading import load_modules, read_source
from model.export.module_tensors import module_tensors, pooling_tensors
from model.export.quantization import quantize
from model.export.samples import Sample, Samples, pack_samples
from model.export.serving import read_dual, record_vision, records_of
from model.export.shared_tensors import save_tensors
from model.export.tensors import calibration_vectors, torch_targets
from model.export.to_onnx import save_graph
from model.export.vectors_graph import export_vectors, obstacle
from model.export.verify import verify
from model.families.registry import FAMILIES, read_decoder_config
from model.numerics.comparison import random_labels
from model.packing import PackedBatch
from model.runtimes.contract import Device
from model.runtimes.pytorch import Modules
from model.runtimes.registry import RUNTIMES, check_device, runtime_of, weight_bits
from model.sources.files import Progress, report_pickles
from model.sources.overlay import as_folders
from model.tasks.head import scores_of_text
from model.tokenization.tokenizer import load_target_tokenizer

LABELS = 7
"""Number of tokens of the last text's target."""


def golden_text(modules: Modules, sample: Sample, target_tokens: int = 0) -> GoldenText:
    """Return one text with its hidden states, maps, and outputs of task head and decoder.

    `target_tokens` is the length of a random target; 0 for no target.
    """
    source = pack_samples([sample])
    with torch.inference_mode():
        output = modules.encoder(PackedBatch.of(source), output_attentions=True)
    hidden = torch.stack(list(output.hidden_states)).numpy()
    maps = torch.cat(list(output.attentions)).numpy()
    head, decoder = modules.head, modules.decoder
    scores = scores_of_text(head, output.hidden_states[-1]) if head else None
    ids, segments = (np.array(own, np.int64) for own in sample[:2])
    golden = GoldenText(ids, segments, hidden, maps, sample.pixels, scores)
    if decoder is None or not target_tokens:
        return golden
    labels = random_labels(decoder.config, target_tokens, seed=0)
    (target,) = torch_targets(decoder, source, [hidden[-1]], [labels])
    return replace(golden, labels=labels, target=target)


def save_tokenizers(source: Tokenizer | None, target: Tokenizer | None, folder: Path) -> None:
    """Write `tokenizer.json` for texts, and `target_tokenizer.json` if targets have another one."""
    for name, tokenizer in ((TOKENIZER, source), (TARGET_TOKENIZER, target)):
        if tokenizer is not None:
            with writing(path := folder / name):
                tokenizer.save(str(path), pretty=False)


def save(
    folder: Path,
    name: str,
    content: onnx.ModelProto | Mapping[str, torch.Tensor],
    external: str | None = None,
) -> None:
    """Write a file of an artifact, without tensors of earlier files that `DATA_OF` lets it name.

    These are usually the word embedding, which a decoder and an output map share with the encoder.
    `external` is the file of a graph's other weights.
    """
    data = sorted(DATA_OF.get(name, ()), key=lambda other: other.endswith(".data"))
    beside = [folder / other.removesuffix(".data") for other in data]
    beside = [path for path in beside if path.name != name and path.exists()]
    if isinstance(content, onnx.ModelProto):
        save_graph(content, folder / name, external, beside)
    else:
        save_tensors(dict(sorted(content.items())), folder / name, beside)


def export(
    checkpoint: Path,
    out: Path,
    model: str,
    precision: Precision = "fp32",
    progress: Progress = lambda _: None,
    device: Device = "cpu",
) -> Artifact:
    """Export a checkpoint as an artifact, verify it, and move it to `out` in one step.

    An artifact that fails its verification is written too, with the result in its manifest; the
    service refuses it.

    `out` is a folder that does not exist yet, or is empty; `model` the name under which the service
    answers. The device verifies the artifact; the graphs are the same.

    Raises:
        ModelError: the checkpoint is unusable, the device is missing, `out` exists and is not
            empty, or there is not enough disk space.

    """
    check_device(runtime_of(precision), device)
    with as_folders(checkpoint) as parts:
        first = parts.get("text") or parts.get("vision") or checkpoint
        dual = read_dual(checkpoint) if "text" in parts else None

        def build(folder: Path) -> None:
            _build(first, folder, model, precision, progress)
            if dual is not None:
                vision = place(
                    folder / VISION,
                    lambda own: _build(parts["vision"], own, model, precision, progress),
                    lambda artifact: _verify(artifact, device, progress),
                )
                record_vision(folder, dual, vision)

        return place(out, build, lambda artifact: _verify(artifact, device, progress))


def check_precision(precision: Precision, model_type: str, *, decoder: bool) -> None:
    """Raise an error if a checkpoint cannot be exported in a precision."""
    family = FAMILIES.get(model_type)
    half = family is None or family.half
    if precision == "fp16" and not half:
        raise ConfigError(
            f"{model_type} is not exported in fp16, as its hidden states exceed half precision's "
            "65,504; export it in fp32"
        )
    precisions = ("fp32", "fp16") if half else ("fp32",)
    if decoder and precision not in precisions:
        raise ConfigError(
            f"an encoder–decoder is exported in {' or '.join(precisions)}, not {precision}"
        )


def _build(
    checkpoint: Path, folder: Path, model: str, precision: Precision, progress: Progress
) -> None:
    """Write all files, with a manifest that does not record a verification yet."""
    progress(f"reading {model}")
    source = read_source(checkpoint)
    report_pickles(checkpoint, progress)
    check_precision(
        precision, source.config.model_type, decoder=read_decoder_config(source.inside) is not None
    )
    config, sentence, samples = source.config, source.sentence, source.samples
    modules = load_modules(checkpoint, source.tokenizer, config)
    encoder, head, decoder = modules
    target = None
    if decoder is not None:
        size = decoder.config.layers.vocab_size
        target = load_target_tokenizer(source.inside, size, lowercase=sentence.lowercase)
    parts = head.config if head else None, decoder.config if decoder else None
    pooling = head.config.pooling if head else sentence.pooling
    dtype: Float = "float16" if precision == "fp16" else "float32"
    packed = precision == "fp16" and obstacle(config, pooling) is None
    manifest = Manifest(
        format=FORMAT,
        model=model,
        runtime=runtime_of(precision),
        precision=precision,
        weight_bits=weight_bits(precision),
        exporter=exporter_version(),
        config=config,
        sentence=sentence,
        task=parts[0],
        decoder=parts[1],
        images=source.images,
        own_target_tokenizer=target is not None,
        signature=signatures(config, dtype, *parts, packed=packed),
        files={},
        weights_sha256="",
        verification=UNVERIFIED,
    )
    save_tokenizers(source.tokenizer, target, folder)
    save(folder, WEIGHTS, encoder.state_dict())
    save(folder, HEADS, head_parameters(encoder))
    progress("measuring the ranges of vectors")
    tensors = module_tensors(checkpoint, sentence.modules)
    if sentence.pooling == "attention":
        tensors |= pooling_tensors(source.inside, config)
    calibration = {CALIBRATION: calibration_vectors(encoder, samples, sentence, tensors)}
    save(folder, VECTOR_MODULES, tensors | calibration)
    *others, last = samples.golden()
    golden = [golden_text(modules, sample) for sample in others]
    golden.append(golden_text(modules, last, target_tokens=LABELS if decoder else 0))
    save_golden(folder / GOLDEN, golden)

    served = _quantized(encoder, samples, manifest.weight_bits, progress)
    progress(f"exporting {GRAPHS['encoder']}")
    graph = export_encoder(
        served,
        dtype,
        three_axes=RUNTIMES[runtime_of(precision)].three_axes,
        relative=encoder.relative_parameters(),
    )
    save(folder, GRAPHS["encoder"], graph, ENCODER_DATA)
    if packed:
        progress(f"exporting {GRAPHS['vectors']}")
        save(folder, GRAPHS["vectors"], export_vectors(encoder, cast(PackedPooling, pooling)))
    progress("exporting the graphs that all layers share")
    for name, weightless in weightless_graphs(config, dtype).items():
        save(folder, GRAPHS[name], weightless.export())
    _save_parts(modules, dtype, folder, progress)
    files = records_of(folder, manifest.file_names)
    changed = {"files": files, "weights_sha256": files[WEIGHTS].sha256}
    write_manifest(folder, manifest.model_copy(update=changed))


def _verify(artifact: Artifact, device: Device, progress: Progress) -> VerificationRecord:
    progress("verifying ONNX against PyTorch")
    record = verify(artifact, device).record()
    for line in verdict_lines(record):
        progress(line)
    return record


def _save_parts(modules: Modules, dtype: Float, folder: Path, progress: Progress) -> None:
    """Write the task head, which is float32 in every precision, and the decoder."""
    encoder, head, decoder = modules
    if head is not None:
        progress(f"exporting {GRAPHS['task']}")
        save(folder, TASK_WEIGHTS, head.state_dict())
        save(folder, GRAPHS["task"], export_task(head, encoder.config))
    if decoder is not None:
        progress(f"exporting {GRAPHS['decoder']}")
        save(folder, DECODER_WEIGHTS, decoder.state_dict())
        save(folder, DECODER_HEADS, decoder_head_parameters(decoder))
        for name, graph in export_decoder(decoder, dtype).items():
            external = DECODER_DATA if name in ("decoder", "logprobs") else None
            save(folder, GRAPHS[name], graph, external)


def _quantized(
    encoder: Encoder, samples: Samples, weight_bits: WeightBits | None, progress: Progress
) -> Encoder:
    """Return the encoder of a graph in int8; the encoder itself in other precisions."""
    if weight_bits is None:
        return encoder
    progress("calibrating int8")
    quantized = quantize(encoder, samples.calibration(), weight_bits)
    if quantized.kept:
        progress(f"not in int8, which would lose them: {', '.join(quantized.kept)}")
    return quantized.encoder
