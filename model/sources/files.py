"""Files of a checkpoint: its modules, its weights, and the files that it lacks. Without torch.

Formats: transformers' checkpoints (safetensors or else pickles, sharded or not) and
sentence-transformers' `modules.json`. Exports to other frameworks are never included.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.artifact.integrity import LIBRARIES, STATIC_LIBRARIES, exporter_version, sha256_once
from model.config.files import read_json, read_object
from model.config.precision import WeightBits
from model.errors import CheckpointError, ConfigError, SourceError
from model.families.jina_v3 import JINA_V3, PEFT_CONFIG, PEFT_WEIGHTS, folder_name, is_jina_v3
from model.families.pictures import PICTURE_TYPES
from model.families.towers import towers
from model.images.processing import PREPROCESSOR, PROCESSOR

CONFIG = "config.json"
MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
METADATA = "artifact.metadata"
"""Settings of a checkpoint of Stanford's ColBERT."""
CHAT_TEMPLATE = "chat_template.jinja"
STATIC_EMBEDDING = "StaticEmbedding"
_OF_TASKS = "custom_st.Transformer"
"""Module of jina-embeddings-v3's published folder: a Transformer that takes the name of a task."""


@dataclass(frozen=True, slots=True)
class ModuleEntry:
    """Module and its folder."""

    kind: str
    """Name of its class, with the package unless it is sentence-transformers."""
    folder: Path
    place: str = ""
    """Name of its folder with a final `/`; empty for the checkpoint's own folder."""

    @property
    def name(self) -> str:
        """Name of its class, without any package."""
        return self.kind.rpartition(".")[2]


def listed_modules(folder: Path) -> list[ModuleEntry] | None:
    """Return the modules of a checkpoint in their order; None without `modules.json`.

    Raises:
        ConfigError: the file is not a list of modules, or names a folder outside the checkpoint.

    """
    path = folder / MODULES
    if not path.is_file():
        return None
    entries = read_json(path)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{path} is not a list of modules")
    modules = []
    for entry in entries:
        name, kind = str(entry.get("path") or ""), str(entry.get("type") or "")
        name = "" if name == "." else name.rstrip("/")  # "." as model2vec writes it
        if Path(name).name != name or name == "..":
            raise ConfigError(f"{path} names {name}, which is not a folder beside it")
        # releases of sentence-transformers have moved classes between packages
        kind = re.sub(r"^sentence_transformers\.(.*\.)?", "", kind)
        if kind == _OF_TASKS and is_jina_v3(read_object(folder / name / CONFIG)):
            kind = "Transformer"
        modules.append(ModuleEntry(kind, folder / name, f"{name}/" if name else ""))
    return modules


def is_static(folder: Path) -> bool:
    """Return whether a checkpoint is a static embedding: a table of one vector a token."""
    modules = listed_modules(folder) or []
    return [module.kind for module in modules[:1]] == [STATIC_EMBEDDING]


def transformer_folder(folder: Path) -> Path:
    """Return the folder of a checkpoint's config, weights and tokenizer; see `encoder_place`."""
    return folder / encoder_place(folder)


def encoder_fields(folder: Path) -> dict[str, Any]:
    """Return the content of the encoder's `config.json`; empty without that file."""
    return read_object(transformer_folder(folder) / CONFIG)


def architectures(folder: Path) -> list[str]:
    """Return the names of transformers' classes in the `config.json` of a folder."""
    names = read_object(folder / CONFIG).get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"
FORMATS = ((WEIGHTS, INDEX), (PICKLE, PICKLE_INDEX))
"""Names of the only file and of the shards' index, in the order of preference."""
HYBRID_HEADS = ("colbert_linear.pt", "sparse_linear.pt")
"""Files beside bge-m3's encoder with the linear maps of its token vectors and token weights."""


def weight_files(folder: Path, *, pickles: bool = True) -> list[Path]:
    """Return the files with the tensors of a folder: one, or the shards named by its index.

    With `pickles`, pickles count where there are no safetensors.
    """
    for single, index in FORMATS if pickles else FORMATS[:1]:
        if (folder / single).is_file():
            return [folder / single]
        if (folder / index).is_file():
            path, files = folder / index, [folder / name for name in shards(folder / index)]
            if not files:
                raise CheckpointError(f"{path} is not an index of weights")
            for name, file in zip(shards(path), files, strict=True):
                if Path(name).name != name or not file.is_file():
                    raise CheckpointError(f"{path} names {name}, which is not in the folder")
                if is_pickle(path) != is_pickle(file):
                    raise CheckpointError(f"{path} names {name}, which is of another format")
            return files
    raise CheckpointError(f"{folder} holds no {WEIGHTS}{f' and no {PICKLE}' if pickles else ''}")


def shards(index: Path) -> list[str]:
    """Return the files that an index of shards names; none if it is missing or damaged."""
    try:
        named = read_object(index).get("weight_map")
    except ConfigError:
        return []
    names = list(named.values()) if isinstance(named, dict) else []
    return sorted({*names}) if all(isinstance(name, str) for name in names) else []


def is_pickle(path: Path) -> bool:
    """Return whether a file of weights, or an index of such files, is of pickles by its name."""
    return path.name == PICKLE_INDEX or path.suffix in (".bin", ".pt")


def pickled_files(checkpoint: Path) -> list[Path]:
    """Return the pickles that an export of a checkpoint reads."""
    files = (checkpoint / name for name in weights({*listing(checkpoint)}, checkpoint))
    return [path for path in files if is_pickle(path)]


def listing(folder: Path) -> Iterator[str]:
    """Yield the files of a folder and of its subfolders, as `name` and `folder/name`."""
    for path in folder.iterdir():
        if path.is_file():
            yield path.name
        elif path.is_dir():
            with contextlib.suppress(PermissionError):  # it does not belong to the checkpoint
                yield from (f"{path.name}/{own.name}" for own in path.iterdir() if own.is_file())


Progress = Callable[[str], None]
"""Function that is called with a line at each step."""


def report_pickles(checkpoint: Path, progress: Progress) -> None:
    """Report the pickles that an export of a checkpoint reads, if there are any."""
    if files := pickled_files(checkpoint):
        names = ", ".join(path.relative_to(checkpoint).as_posix() for path in files)
        progress(f"reading tensors, and nothing else, from pickled weights: {names}")


def cache_key(
    checkpoint: Path, model: str, precision: str, weight_bits: WeightBits | None = None
) -> str:
    """Return a short SHA-256 of the checkpoint's files, its name, the precision and the exporter.

    Raises:
        SourceError: the folder holds no checkpoint.
        ConfigError: its `modules.json` cannot be read.

    """
    static = is_static(checkpoint)
    version = exporter_version(STATIC_LIBRARIES if static else LIBRARIES)
    export = f"{model}\0{precision}\0{weight_bits}\0{version}\0"
    digest = hashlib.sha256(export.encode())
    vocabularies = ("vocab.txt", "merges.txt", "*.spm", "*.model")
    patterns = ("*.safetensors", "*.json", "*.jinja", *vocabularies, METADATA)
    inside = transformer_folder(checkpoint)
    folders = {checkpoint, *(module.folder for module in listed_modules(checkpoint) or ())}
    folders |= {path.parent for path in inside.glob(f"*/{PEFT_CONFIG}")}
    files = {path for folder in folders for pattern in patterns for path in folder.glob(pattern)}
    if not static and inside / CONFIG not in files:
        raise SourceError(f"{checkpoint} holds no checkpoint: there is no {CONFIG}")
    for path in sorted({*files, *pickled_files(checkpoint)}):
        name = path.relative_to(checkpoint).as_posix()
        digest.update(f"{name}\0{sha256_once(path)}\0".encode())
    return digest.hexdigest()[:32]


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
TRANSFORMER_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names of the settings of a Transformer module, in the order of preference."""
DESCRIPTIONS = frozenset(
    {
        *(*TOKENIZERS, "merges.txt", "source.spm", "target.spm", "target_vocab.json"),
        *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", CHAT_TEMPLATE),
        *(CONFIG, *_PROCESSORS, INDEX, PICKLE_INDEX, METADATA),
        *(MODULES, SETTINGS, *TRANSFORMER_FILES),
    }
)
"""Names of the small files that describe a checkpoint, in its folder or in a module's."""
_ENCODERS = ("Transformer", "CLIPModel", STATIC_EMBEDDING)
"""Endings of the kinds of modules that read tokens."""
_WITHOUT_CONFIG = {"Normalize", "MLMTransformer", *_ENCODERS}
"""Kinds of modules without a `config.json`, or whose `config.json` is the encoder's."""
_HYBRID_POSITIONS = 8192
"""Minimum `max_position_embeddings` of bge-m3 and models that were trained from it."""


def encoder_place(folder: Path) -> str:
    """Return the folder of the encoder's config and weights, as `ModuleEntry.place`."""
    modules = listed_modules(folder) or ()
    return next((item.place for item in modules if item.kind.endswith(_ENCODERS)), "")


def reads_pictures(folder: Path) -> bool:
    """Return whether a checkpoint's encoder reads pictures alone, and has no tokenizer."""
    return _inputs(folder) == [_PROCESSORS]


def _inputs(folder: Path) -> list[tuple[str, ...]]:
    """Return the possible names of a tokenizer's file, of an image processor's, or of both."""
    fields = encoder_fields(folder)
    types = [own["model_type"] for own in towers(fields).values()] or [fields.get("model_type")]
    return [
        _PROCESSORS if pictures else TOKENIZERS
        for pictures in sorted({own in PICTURE_TYPES for own in types})
    ]


def task_places(folder: Path) -> list[str]:
    """Return the folders of the tasks of a checkpoint for transformers, as `ModuleEntry.place`."""
    encoder, config = encoder_place(folder), encoder_fields(folder)
    named = config.get("lora_adaptations") if config.get("model_type") == JINA_V3 else None
    tasks = named if isinstance(named, list) else []
    return [f"{encoder}{folder_name(str(task))}/" for task in tasks]


def may_be_hybrid(folder: Path) -> bool:
    """Return whether a checkpoint has the architecture, length and pooling of bge-m3.

    No file names bge-m3 itself: it is an XLM-RoBERTa of 8,192 tokens that pools the first token, as
    some dense models are.
    """
    config = encoder_fields(folder)
    positions = config.get("max_position_embeddings")
    if config.get("model_type") != "xlm-roberta" or not isinstance(positions, int):
        return False
    poolings = [item for item in listed_modules(folder) or () if item.name == "Pooling"]
    settings = [read_object(item.folder / CONFIG) for item in poolings]
    return positions >= _HYBRID_POSITIONS and any(
        own.get("pooling_mode") == "cls" or own.get("pooling_mode_cls_token") is True
        for own in settings
    )


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
    modules = listed_modules(folder) or ()
    places = {encoder_place(folder), *(item.place for item in modules if item.place)}
    found = {name for at in places for name in _weights(names, folder, at, pickles)}
    found |= {at + PEFT_WEIGHTS for at in task_places(folder)}
    return sorted({*found, *(HYBRID_HEADS if pickles else ())} & set(names))


def _weights(names: Collection[str], folder: Path, at: str, pickles: bool) -> list[str]:
    """Return the files of weights at a place in a repository, in the preferred format."""
    for single, index in FORMATS if pickles else FORMATS[:1]:
        if at + single in names:
            return [at + single]
        if listed := shards(folder / at / index):
            return [at + shard for shard in listed]
    return []


def lacking(folder: Path, *, pickles: bool = True) -> list[str]:
    """Return the files that a folder lacks for a complete checkpoint."""
    encoder = encoder_place(folder)
    wanted, with_tensors = [] if is_static(folder) else [encoder + CONFIG], [encoder]
    wanted += [
        encoder + readers[0]
        for readers in _inputs(folder)
        if not any((folder / at / name).is_file() for at in {"", encoder} for name in readers)
    ]
    for item in listed_modules(folder) or ():
        if item.place and item.name not in _WITHOUT_CONFIG:
            wanted.append(item.place + CONFIG)
        if item.place and item.name == "Dense":
            with_tensors.append(item.place)
    wanted += [at + name for at in task_places(folder) for name in (PEFT_CONFIG, PEFT_WEIGHTS)]
    for at in with_tensors:
        names = {at + name for name, _ in FORMATS if (folder / at / name).is_file()}
        wanted += _weights(names, folder, at, pickles) or [at + WEIGHTS]
    return [name for name in wanted if not (folder / name).is_file()]
