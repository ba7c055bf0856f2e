"""Export of static embeddings (model2vec): a table of one vector a token, without torch.

Format: sentence-transformers' module StaticEmbedding, a table of one vector a token and a tokenizer
without special tokens; also model2vec's own keys, whose tokens share rows and have weights
(https://github.com/MinishLab/model2vec). A text's vector is the mean of its tokens' rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from model.artifact.integrity import STATIC_LIBRARIES, exporter_version, writing
from model.artifact.manifest import (
    FORMAT,
    STATIC_FILES,
    TABLE,
    TOKENIZER,
    VECTOR_MODULES,
    Artifact,
    Manifest,
    place,
    record_file,
    write_manifest,
)
from model.artifact.mapped import mapped_tensors
from model.artifact.sentence import SentenceConfig
from model.artifact.verification import UNVERIFIED, Verdict, VerificationRecord
from model.config.encoder import StaticConfig
from model.config.files import read_json, read_object
from model.errors import CheckpointError
from model.runtimes.static import ROWS, StaticRuntime
from model.sources.files import (
    MODULES,
    SETTINGS,
    WEIGHTS,
    ModuleEntry,
    Progress,
    listed_modules,
    report_pickles,
)
from model.sources.sentence import read_sentence
from model.tokenization.tokenizer import load_tokenizer

_TOKENIZER = "tokenizer.json"
_POOLING = "headscope-pooling"
_CLASSES = "sentence_transformers.models."
_FLOATS = ("float16", "float32", "float64")


def export_static(
    checkpoint: Path, out: Path, model: str, progress: Progress = lambda _: None
) -> Artifact:
    """Export a static embedding, compare its table with the checkpoint's, and move it to `out`.

    Raises:
        ConfigError: a description cannot be read.
        CheckpointError: the table, the tokenizer or a module's tensors cannot be read.
        ArtifactError: `out` exists and is not empty.

    """
    progress(f"reading {model}")
    first, *others = listed_modules(checkpoint) or []
    for path in (first.folder / WEIGHTS, first.folder / _TOKENIZER):
        if not path.is_file():
            raise CheckpointError(f"{checkpoint}: {path.name} of StaticEmbedding is missing")
    report_pickles(checkpoint, progress)
    table = read_table(first.folder / WEIGHTS)

    def build(folder: Path) -> None:
        described = folder.with_name("described")
        _describe(checkpoint, first, others, described)
        _build(table, described, folder, model)

    def verify(artifact: Artifact) -> VerificationRecord:
        same = np.array_equal(mapped_tensors(artifact.path(TABLE))[ROWS], table)
        failed = None if same else "the table differs from the checkpoint's"
        verdict = Verdict(passed=same, failed=failed)
        record = {"reference": "table", "vectors": verdict, "heads": verdict}
        return UNVERIFIED.model_copy(update=record | {"provider": StaticRuntime.provider})

    return place(out, build, verify)


def read_table(path: Path) -> NDArray[np.float32]:
    """Return one row per token id, `[V, D]`, in float32.

    model2vec's `mapping` `[V]` names each token's row of `embeddings`, and `weights` `[V]` its
    factor.
    """
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from None
    rows = tensors.get("embedding.weight")
    mapping = weights = None
    if rows is None:
        rows, mapping, weights = map(tensors.get, ("embeddings", "mapping", "weights"))
    if rows is None or rows.ndim != 2 or rows.dtype.name not in _FLOATS:
        raise CheckpointError(
            f"{path} holds no table of vectors in float16, float32 or float64: embedding.weight, "
            "or model2vec's embeddings"
        )
    table = rows.astype(np.float32)
    if mapping is not None:
        if mapping.ndim != 1 or not ((mapping >= 0) & (mapping < len(rows))).all():
            raise CheckpointError(f"{path}: mapping names rows that embeddings does not have")
        table = table[mapping]
    if weights is not None:
        if weights.shape != table.shape[:1]:
            raise CheckpointError(f"{path}: weights {weights.shape} is not one factor a token")
        table = (table * weights[:, None]).astype(np.float32)
    if not np.isfinite(table).all():
        raise CheckpointError(f"{path}: the table of vectors is not finite")
    return table


def _build(table: NDArray[np.float32], described: Path, folder: Path, model: str) -> None:
    """Write all files, with a manifest that does not record a verification yet."""
    vocabulary, features = table.shape
    config = StaticConfig(vocab_size=vocabulary, hidden_size=features)
    sentence = read_sentence(described, config.max_position_embeddings, features)
    tokenizer = load_tokenizer(described, config, lowercase=sentence.lowercase)
    with writing(path := folder / TOKENIZER):
        tokenizer.save(str(path), pretty=False)
    with writing(path := folder / TABLE):
        save_file({ROWS: table}, path)
    with writing(path := folder / VECTOR_MODULES):
        save_file(_module_tensors(described, sentence), path)
    files = {name: record_file(folder / name) for name in STATIC_FILES}
    manifest = Manifest(
        format=FORMAT,
        model=model,
        runtime="static",
        precision="fp32",
        exporter=exporter_version(STATIC_LIBRARIES),
        config=config,
        sentence=sentence,
        signature={},
        files=files,
        weights_sha256=files[TABLE].sha256,
        verification=UNVERIFIED,
    )
    write_manifest(folder, manifest)


def _module_tensors(described: Path, sentence: SentenceConfig) -> dict[str, NDArray[Any]]:
    """Return the tensors of the modules after pooling; reading any of them needs torch."""
    if not any(module.shapes() for module in sentence.modules):
        return {}
    try:
        from model.export.module_tensors import module_tensors  # noqa: PLC0415 - it needs torch
    except ImportError:
        raise CheckpointError(
            "the static embedding has modules with weights, and to read them torch is needed, "
            "which is not installed"
        ) from None
    tensors = module_tensors(described, sentence.modules)
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _describe(
    checkpoint: Path, first: ModuleEntry, others: list[ModuleEntry], folder: Path
) -> None:
    """Write the descriptions of a Transformer with mean pooling and the checkpoint's modules.

    Its tokenizer adds no special tokens, pads nothing and truncates nothing.
    """
    listed = read_json(checkpoint / MODULES)[1:]
    folder.mkdir()
    for module in others:
        if module.folder.is_dir() and module.folder != checkpoint:
            (folder / module.folder.name).symlink_to(module.folder.resolve())
    modules = [
        {"path": "", "type": f"{_CLASSES}Transformer"},
        {"path": _POOLING, "type": f"{_CLASSES}Pooling"},
        *listed,
    ]
    contents: Mapping[str, Any] = {
        MODULES: modules,
        _TOKENIZER: read_object(first.folder / _TOKENIZER)
        | {"post_processor": None, "padding": None, "truncation": None},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        f"{_POOLING}/config.json": {"pooling_mode": "mean"},
        SETTINGS: read_object(checkpoint / SETTINGS),
    }
    (folder / _POOLING).mkdir()
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
