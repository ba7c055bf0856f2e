"""Folders that combine the files of a checkpoint with others, in the format of a checkpoint.

They give a checkpoint another pooling, by a `modules.json` that all readers of checkpoints know, or
another size of its pictures. The pooling `yes-no` is the format of Qwen3-Reranker's model card
(Zhang et al. 2025, section 2, https://arxiv.org/abs/2506.05176): a score compares the logits of
`yes` and `no`.

Each tower of CLIP or SigLIP gets such a folder too, in the format of transformers'
`CLIPTextModelWithProjection`, `CLIPVisionModelWithProjection`, `SiglipTextModel` or
`SiglipVisionModel`. An image classifier with a vision tower has that tower alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from model.config.files import read_object
from model.errors import ConfigError, ModelError
from model.families.towers import Tower, towers
from model.images.processing import PREPROCESSOR, PROCESSOR, read_processing, written_fields
from model.sources.files import (
    CHAT_TEMPLATE,
    CONFIG,
    MODULES,
    architectures,
    encoder_fields,
    encoder_place,
    listed_modules,
    transformer_folder,
)
from model.sources.home import EXPORTS, make_cache
from model.sources.task_files import LOGIT_SCORE


def with_image_size(checkpoint: Path, size: tuple[int, int], folders: Path) -> Path:
    """Return a folder that combines a checkpoint with another size of its pictures.

    Pictures are resized to the size, whatever their proportions, and not cropped. The size is
    height and width in pixels.

    Raises:
        ConfigError: the checkpoint has no image processor, or one that is not supported.

    """
    inside = transformer_folder(checkpoint)
    whole = read_object(inside / PROCESSOR)
    if not (inside / PREPROCESSOR).is_file() and "image_processor" not in whole:
        raise ConfigError(f"{checkpoint} has no image processor: leave out --image-size")
    path, own = written_fields(inside)
    read_processing(inside)
    size_of_all = {"do_resize": True, "size": {"height": size[0], "width": size[1]}}
    content = own | size_of_all | {"do_center_crop": False}
    if path.name == PROCESSOR:
        content = whole | {"image_processor": content}
    written = {encoder_place(checkpoint) + path.name: json.dumps(content)}
    return overlaid(checkpoint, written, folders)


PoolingSetting = Literal["cls", "mean", "last-token", "splade", "yes-no"]
_MODES = {"cls": "cls", "mean": "mean", "last-token": "lasttoken"}
_FOLDER = "headscope-pooling"
_RERANKER = "Qwen3ForCausalLM"
YES_NO = (
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
    '<Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") '
    '| first | default("Given a web search query, retrieve relevant passages that answer the '
    'query") }}\n'
    '<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first '
    "}}\n"
    '<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") '
    "| first }}<|im_end|>\n"
    '<|im_start|>assistant\n{{ "<think>\\n\\n</think>\\n\\n" }}'
)
"""Chat template of Qwen3-Reranker."""


def is_masked_language_model(checkpoint: Path) -> bool:
    """Return whether a checkpoint folder's `config.json` names a masked language model."""
    return any(name.endswith("ForMaskedLM") for name in architectures(checkpoint))


def may_be_reranker(checkpoint: Path) -> bool:
    """Return whether a checkpoint's files leave open whether it embeds texts or scores pairs."""
    return listed_modules(checkpoint) is None and _RERANKER in architectures(checkpoint)


def may_be_dense_or_sparse(checkpoint: Path) -> bool:
    """Return whether a checkpoint's files leave open whether its vectors are dense or sparse."""
    return listed_modules(checkpoint) is None and is_masked_language_model(checkpoint)


def with_pooling(checkpoint: Path, pooling: PoolingSetting, folders: Path) -> Path:
    """Return a folder that combines the checkpoint with this pooling.

    The names of poolings are those of text-embeddings-inference.

    Raises:
        ConfigError: the checkpoint has no word logits for `splade` or `yes-no`, no pooling to
            replace, or two towers.

    """
    if towers(encoder_fields(checkpoint)):
        raise ConfigError(f"{checkpoint}: --pooling is not for CLIP and SigLIP: leave it out")
    entries = listed_modules(checkpoint)
    first, kind = "Transformer", "Pooling"
    config: dict[str, object] = {"pooling_mode": _MODES.get(pooling)}
    written = {}
    if pooling == "splade":
        if not is_masked_language_model(transformer_folder(checkpoint)):
            raise ConfigError(
                f"{checkpoint}: --pooling splade needs the logits of words, and its architecture "
                "is not a masked language model (…ForMaskedLM): leave it out"
            )
        first, kind = "MLMTransformer", "SpladePooling"
        config = {"pooling_strategy": "max", "activation_function": "relu"}
    elif pooling == "yes-no":
        if not may_be_reranker(checkpoint):
            raise ConfigError(
                f"{checkpoint}: --pooling yes-no reads checkpoints of Qwen3-Reranker, without "
                f"modules.json and of the architecture {_RERANKER}: leave it out"
            )
        kind, written = LOGIT_SCORE, {CHAT_TEMPLATE: YES_NO}
        words = {"true_token_id": "yes", "false_token_id": "no"}
        config = {key: _token_id(checkpoint, word) for key, word in words.items()}
    elif entries is not None and [own.kind for own in entries[:2]] != [first, kind]:
        raise ConfigError(f"{checkpoint / MODULES}: --pooling {pooling} has no Pooling to replace")
    modules = [(encoder_place(checkpoint), first), (_FOLDER, kind)]
    if entries is not None and pooling in _MODES:
        modules += [(own.place, own.kind) for own in entries[2:]]
    written[MODULES] = json.dumps([{"path": path, "type": kind} for path, kind in modules])
    written[f"{_FOLDER}/{CONFIG}"] = json.dumps(config)
    return overlaid(checkpoint, written, folders)


def _token_id(checkpoint: Path, word: str) -> int:
    """Return the id of a word that is one token."""
    stored = read_object(checkpoint / "tokenizer.json").get("model")
    vocabulary = stored.get("vocab") if isinstance(stored, dict) else None
    if vocabulary is None:
        vocabulary = read_object(checkpoint / "vocab.json")
    index = vocabulary.get(word) if isinstance(vocabulary, dict) else None
    if not isinstance(index, int):
        raise ConfigError(f"{checkpoint}: --pooling yes-no needs {word!r} in the vocabulary")
    return index


def overlaid(checkpoint: Path, written: Mapping[str, str], folders: Path) -> Path:
    """Return a folder of links to a checkpoint's files, in which some files are replaced or added.

    `written` has the content of each replaced or added file by its path, `name` or `folder/name`.
    The folder, in `folders`, is reused if it exists.
    """
    names = sorted(path.name for path in checkpoint.iterdir())
    decides = json.dumps([str(checkpoint.resolve()), names, dict(written)])
    folder = folders / hashlib.sha256(decides.encode()).hexdigest()[:32]
    if folder.exists():
        return folder
    make_cache(folders, EXPORTS)
    with tempfile.TemporaryDirectory(dir=folders) as scratch:
        made = Path(scratch) / folder.name
        made.mkdir()
        _fill(made, checkpoint, written)
        with contextlib.suppress(OSError):  # another process created the same folder first
            made.rename(folder)
    return folder


def _fill(folder: Path, source: Path, written: Mapping[str, str]) -> None:
    """Link to the files of a folder, and write others in place of them or beside them."""
    for path in source.iterdir():
        (folder / path.name).symlink_to(path.resolve())
    for name, content in written.items():
        path = folder / name
        if path.parent.is_symlink():  # the other files of a module's folder are linked one by one
            linked = path.parent.resolve()
            path.parent.unlink()
            path.parent.mkdir()
            _fill(path.parent, linked, {})
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(content, encoding="utf-8")


def split(checkpoint: Path, folders: Path) -> dict[Tower, Path]:
    """Write a folder for each tower of a checkpoint, and return them; empty without towers."""
    path = encoder_place(checkpoint) + CONFIG
    return {
        tower: overlaid(checkpoint, {path: json.dumps(config)}, folders)
        for tower, config in towers(encoder_fields(checkpoint)).items()
    }


@contextlib.contextmanager
def as_folders(checkpoint: Path) -> Iterator[dict[Tower, Path]]:
    """Provide a folder for each tower of a checkpoint while the context lasts; see `split`.

    Errors inside name the checkpoint in place of these folders.
    """
    if not towers(encoder_fields(checkpoint)):
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder:
        parts = split(checkpoint, Path(folder))
        try:
            yield parts
        except ModelError as error:
            message = str(error)
            for own in parts.values():
                message = message.replace(str(own), str(checkpoint))
            raise type(error)(message) from None
