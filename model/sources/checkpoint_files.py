"""Files of a repository that make up a checkpoint, and detection of missing ones.

Formats: transformers' checkpoints (safetensors or else pickles, sharded or not) and
sentence-transformers' `modules.json`. Exports to other frameworks are never included.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Any

from model.artifact.modules import STATIC_EMBEDDING, is_static
from model.artifact.weight_files import FORMATS, HYBRID_HEADS, INDEX, PICKLE_INDEX, WEIGHTS
from model.families.jina_tasks import JINA_V3, PEFT_CONFIG, PEFT_WEIGHTS, folder_name
from model.families.pictures import PICTURE_TYPES
from model.families.towers import towers
from model.images.processing import PREPROCESSOR, PROCESSOR

CONFIG = "config.json"
MODULES = "modules.json"
TOKENIZERS = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
"""Names of files that can hold a tokenizer's vocabulary."""
_PROCESSORS = (PREPROCESSOR, PROCESSOR)
DESCRIPTIONS = frozenset(
    {
        *TOKENIZERS,
        CONFIG,
        MODULES,
        INDEX,
        PICKLE_INDEX,
        "artifact.metadata",
        "chat_template.jinja",
        "merges.txt",
        "source.spm",
        "target.spm",
        "target_vocab.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        PREPROCESSOR,
        PROCESSOR,
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        "sentence_roberta_config.json",
        "sentence_distilbert_config.json",
        "sentence_camembert_config.json",
        "sentence_albert_config.json",
        "sentence_xlm-roberta_config.json",
        "sentence_xlnet_config.json",
    }
)
"""Names of the small files that describe a checkpoint, in its folder or in a module's."""
_ENCODERS = ("Transformer", "CLIPModel", STATIC_EMBEDDING)
"""Endings of the kinds of modules that read tokens."""
_WITHOUT_CONFIG = {"Normalize", "Transformer", "CLIPModel", "MLMTransformer", STATIC_EMBEDDING}
"""Kinds of modules without a `config.json`, or whose `config.json` is the encoder's."""
_HYBRID_POSITIONS = 8192
"""Minimum `max_position_embeddings` of bge-m3 and models that were trained from it."""


def modules(folder: Path) -> list[dict[str, object]]:
    """Return the entries of `modules.json`; none if it is missing or not a list of modules."""
    content = read_json(folder / MODULES)
    return [item for item in content if isinstance(item, dict)] if isinstance(content, list) else []


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; None if it cannot be read."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def kind(module: dict[str, object]) -> str:
    """Return the class of an entry of `modules.json`, without its package."""
    return str(module.get("type", "")).rpartition(".")[2]


def place(module: dict[str, object]) -> str:
    """Return a module's folder with a final `/`; empty for the checkpoint's own, or one outside."""
    path = PurePosixPath(str(module.get("path") or ""))
    if path.is_absolute() or ".." in path.parts or not path.parts:
        return ""
    return f"{path.as_posix()}/"


def encoder_place(folder: Path) -> str:
    """Return the folder of the encoder's config and weights, as `place` does."""
    return next((place(item) for item in modules(folder) if kind(item).endswith(_ENCODERS)), "")


def reads_pictures(folder: Path) -> bool:
    """Return whether a checkpoint's encoder reads pictures alone, and has no tokenizer."""
    return _inputs(folder) == [_PROCESSORS]


def _inputs(folder: Path) -> list[tuple[str, ...]]:
    """Return the possible names of a tokenizer's file, of an image processor's, or of both."""
    config = read_json(folder / encoder_place(folder) / CONFIG)
    fields = config if isinstance(config, dict) else {}
    types = [own["model_type"] for own in towers(fields).values()] or [fields.get("model_type")]
    return [
        _PROCESSORS if pictures else TOKENIZERS
        for pictures in sorted({own in PICTURE_TYPES for own in types})
    ]


def task_places(folder: Path) -> list[str]:
    """Return the folders of the tasks of a checkpoint for transformers, as `place` does."""
    encoder = encoder_place(folder)
    config = read_json(folder / encoder / CONFIG)
    if not isinstance(config, dict) or config.get("model_type") != JINA_V3:
        return []
    named = config.get("lora_adaptations")
    tasks = named if isinstance(named, list) else []
    return [f"{encoder}{folder_name(str(task))}/" for task in tasks]


def may_be_hybrid(folder: Path) -> bool:
    """Return whether a checkpoint has the architecture, length and pooling of bge-m3.

    No file names bge-m3 itself: it is an XLM-RoBERTa of 8,192 tokens that pools the first token, as
    some dense models are.
    """
    config = read_json(folder / encoder_place(folder) / CONFIG)
    if not isinstance(config, dict) or config.get("model_type") != "xlm-roberta":
        return False
    positions = config.get("max_position_embeddings")
    poolings = [item for item in modules(folder) if kind(item) == "Pooling"]
    settings = [read_json(folder / place(item) / CONFIG) for item in poolings]
    return (
        isinstance(positions, int)
        and positions >= _HYBRID_POSITIONS
        and any(isinstance(own, dict) and _pools_first(own) for own in settings)
    )


def _pools_first(pooling: dict[str, object]) -> bool:
    return pooling.get("pooling_mode") == "cls" or pooling.get("pooling_mode_cls_token") is True


def deciding(folder: Path, *, pickles: bool = True) -> list[str]:
    """Return the files whose absence changes which other files or vectors a checkpoint has.

    They are the list of modules; the encoder's safetensors, which go before pickles; and the linear
    maps of a checkpoint that may be bge-m3.
    """
    encoder = encoder_place(folder)
    sharded = (folder / encoder / INDEX).is_file()
    names = [MODULES] if sharded else [MODULES, encoder + WEIGHTS]
    return [*names, *HYBRID_HEADS] if pickles and may_be_hybrid(folder) else names


def descriptions(names: Collection[str], within: str = "") -> list[str]:
    """Select the files of a repository that describe the contents of one folder."""
    return sorted({within + name for name in DESCRIPTIONS} & set(names))


def weights(names: Collection[str], folder: Path, *, pickles: bool = True) -> list[str]:
    """Select the files of a repository that hold the tensors of its encoder and modules."""
    places = {encoder_place(folder), *filter(None, map(place, modules(folder)))}
    heads = HYBRID_HEADS if pickles else ()
    found = {name for at in places for name in _weights(names, folder, at, pickles)}
    found |= {at + PEFT_WEIGHTS for at in task_places(folder)}
    return sorted({*found, *heads} & set(names))


def _weights(names: Collection[str], folder: Path, at: str, pickles: bool) -> list[str]:
    """Return the files of weights at a place in a repository, in the preferred format."""
    for single, index in FORMATS if pickles else FORMATS[:1]:
        if at + single in names:
            return [at + single]
        if listed := shards(folder / at / index):
            return [at + shard for shard in listed]
    return []


def shards(index: Path) -> list[str]:
    """Return the files that an index of shards names; none without an index."""
    content = read_json(index)
    named = content.get("weight_map") if isinstance(content, dict) else None
    return sorted({str(name) for name in named.values()}) if isinstance(named, dict) else []


def lacking(folder: Path, *, pickles: bool = True) -> list[str]:
    """Return the files that a folder lacks for a complete checkpoint."""
    encoder = encoder_place(folder)
    wanted, with_tensors = [] if is_static(folder) else [encoder + CONFIG], [encoder]
    wanted += [
        encoder + readers[0]
        for readers in _inputs(folder)
        if not any((folder / at / name).is_file() for at in {"", encoder} for name in readers)
    ]
    for item in modules(folder):
        if place(item) and kind(item) not in _WITHOUT_CONFIG:
            wanted.append(place(item) + CONFIG)
        if place(item) and kind(item) == "Dense":
            with_tensors.append(place(item))
    wanted += [at + name for at in task_places(folder) for name in (PEFT_CONFIG, PEFT_WEIGHTS)]
    for at in with_tensors:
        names = {at + name for name, _ in FORMATS if (folder / at / name).is_file()}
        wanted += _weights(names, folder, at, pickles) or [at + WEIGHTS]
    return [name for name in wanted if not (folder / name).is_file()]
