"""Import of a foreign graph (an ONNX export by another tool) as an artifact. Without torch.

The graph is used as it is; tensors in files beside it are copied.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import ValidationError
from safetensors.numpy import save_file

from model.artifact.access import writing
from model.artifact.cache import exporter_version
from model.artifact.integrity import sha256_of
from model.artifact.manifest import (
    ENCODER_DATA,
    ENCODER_GRAPH,
    FOREIGN_FILES,
    FORMAT,
    TOKENIZER,
    VECTOR_MODULES,
    Artifact,
    Manifest,
    record_file,
    write_manifest,
)
from model.artifact.modules import read_object
from model.artifact.sentence import SentenceConfig
from model.artifact.signature import GraphSignature
from model.artifact.verification import UNVERIFIED
from model.artifact.weight_files import PICKLE, report_pickles
from model.config.encoder import EncoderConfig, UnknownEncoder
from model.errors import CheckpointError, ConfigError
from model.export.foreign_graph import (
    data_files,
    precision_of,
    read_graph,
    save_foreign,
    signature_of,
)
from model.export.foreign_trial import verify_alone
from model.export.placement import Progress, place
from model.families.registry import FAMILIES, parse_config
from model.sources.foreign_exports import ForeignGraph
from model.tokenization.segments import reading_segments
from model.tokenization.templates import check_template
from model.tokenization.tokenizer import load_tokenizer

_LIBRARIES = ("onnx", "tokenizers", "transformers")
_VOCABULARIES = ("vocab.txt", "merges.txt")
_DESCRIPTIONS = ("*.json", "*/config.json", f"*/{PICKLE}", "*/*.safetensors", *_VOCABULARIES)
_SIZES = ("vocab_size", "max_position_embeddings")


def foreign_key(graph: ForeignGraph, model: str) -> str:
    """Return a shortened SHA-256 of a graph's files, its name and the exporter: its cache key.

    Raises:
        CheckpointError: the graph cannot be read, or names files outside its folder.

    """
    digest = hashlib.sha256(f"foreign\0{model}\0{exporter_version(_LIBRARIES)}\0".encode())
    folders = {graph.checkpoint, graph.config.parent, graph.tokenizer}
    described = {path for folder in folders for name in _DESCRIPTIONS for path in folder.glob(name)}
    for path in (graph.path, *data_files(read_graph(graph.path), graph.path), *sorted(described)):
        digest.update(f"{path.name}\0{sha256_of(path)}\0".encode())
    return digest.hexdigest()[:32]


def export_foreign(
    graph: ForeignGraph, out: Path, model: str, progress: Progress = lambda _: None
) -> Artifact:
    """Turn a foreign graph into an artifact, test it, and move it to `out` in one step.

    There is no PyTorch reference. The manifest records the test: see `verify_alone`.

    Args:
        graph: the ONNX file and its descriptions.
        out: a folder that does not exist yet, or is empty.
        model: name under which the service answers.
        progress: called with a line at each step.

    Raises:
        ModelError: the graph is not a text encoder, its files are unusable, or `out` exists and is
            not empty.

    """

    def build(folder: Path) -> None:
        progress(f"reading {graph.path}")
        report_pickles(graph.checkpoint, progress, modules_only=True)
        _build(graph, folder, model)
        progress("trying the graph on texts alone and in a batch")

    return place(out, build, verify_alone).artifact


def _build(graph: ForeignGraph, folder: Path, model: str) -> None:
    """Write all files, with a manifest that does not record a verification yet."""
    content = read_graph(graph.path)
    save_foreign(content, graph.path, folder / ENCODER_GRAPH)
    signature = signature_of(content, graph.path, folder / ENCODER_GRAPH)
    config = reading_segments(config_of(graph, signature), graph.tokenizer)
    limit = config.max_position_embeddings
    sentence = SentenceConfig.from_checkpoint(graph.checkpoint, limit, config.hidden_size)
    if isinstance(config, UnknownEncoder):  # its position table may have rows that no text can use
        config = config.model_copy(update={"max_position_embeddings": sentence.max_length})
    tokenizer = load_tokenizer(graph.tokenizer, config, lowercase=sentence.lowercase)
    check_template(graph.tokenizer, tokenizer, config, sentence.max_length)
    with writing(path := folder / TOKENIZER):
        tokenizer.save(str(path), pretty=False)
    _save_modules(graph.checkpoint, sentence, folder / VECTOR_MODULES)
    for name in FOREIGN_FILES:
        (folder / name).chmod(0o644)
    files = {name: record_file(folder / name) for name in FOREIGN_FILES}
    manifest = Manifest(
        format=FORMAT,
        model=model,
        runtime="foreign",
        precision=precision_of(content),
        exporter=exporter_version(_LIBRARIES),
        config=config,
        sentence=sentence,
        signature={"encoder": signature},
        files=files,
        weights_sha256=files[ENCODER_DATA].sha256,
        verification=UNVERIFIED.model_copy(update={"reference": "itself"}),
    )
    write_manifest(folder, manifest)


def config_of(graph: ForeignGraph, signature: GraphSignature) -> EncoderConfig | UnknownEncoder:
    """Return the config of a graph's encoder from `config.json`; only its sizes if unknown.

    Segments make no difference if the graph does not take them.

    Raises:
        ConfigError: a size is missing or invalid, or differs from the graph's.

    """
    fields, (output, *maps) = read_object(graph.config), signature.outputs
    hidden_size, heads = output.axes[-1], maps[0].axes[1] if maps else 0
    takes_segments = "token_type_ids" in {spec.name for spec in signature.inputs}
    segments = (fields.get("type_vocab_size") or 1) if takes_segments else 0
    if str(fields.get("model_type")) in FAMILIES:
        config = parse_config(fields)
        if config.hidden_size != hidden_size:
            raise ConfigError(
                f"{graph.path} gives {hidden_size} features a token ({output.name}), where "
                f"{graph.config} says {config.hidden_size}"
            )
        expected = (config.num_hidden_layers, config.num_attention_heads)
        if maps and expected != (len(maps), heads):
            raise ConfigError(
                f"{graph.path} gives attention weights of {len(maps)} layers and {heads} heads, "
                f"where {graph.config} says {expected[0]} and {expected[1]}: export those of every "
                "layer, or none"
            )
        if takes_segments:
            segments = config.type_vocab_size or segments
        return config.model_copy(update={"type_vocab_size": segments})
    if missing := [name for name in _SIZES if name not in fields]:
        raise ConfigError(f"{graph.config} does not say {' and '.join(missing)}")
    try:
        return UnknownEncoder(
            model_type=str(fields.get("model_type")),
            hidden_size=hidden_size,
            num_hidden_layers=len(maps),
            num_attention_heads=heads,
            type_vocab_size=segments,
            pad_token_id=fields.get("pad_token_id") or 0,
            **{name: fields[name] for name in _SIZES},
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{graph.config}: {where}: {first['msg']}") from None


def _save_modules(checkpoint: Path, sentence: SentenceConfig, path: Path) -> None:
    """Write the tensors of the modules after pooling; reading any of them needs torch.

    Raises:
        CheckpointError: torch is not installed, or the tensors are unusable.

    """
    tensors = {}
    if any(module.shapes() for module in sentence.modules):
        try:
            from model.export.module_tensors import module_tensors  # noqa: PLC0415 - it needs torch
        except ImportError:
            raise CheckpointError(
                f"{checkpoint} has modules with weights, and to read them torch is needed, which "
                "is not installed"
            ) from None
        by_name = module_tensors(checkpoint, sentence.modules)
        tensors = {name: tensor.numpy() for name, tensor in by_name.items()}
    with writing(path):
        save_file(tensors, path)
