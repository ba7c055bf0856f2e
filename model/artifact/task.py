"""Recognition of a checkpoint's task head, from its configuration files. Without torch.

Formats: the `architectures` of transformers' `config.json`, and the modules and the
`transformer_task` of sentence-transformers' cross-encoders and sparse encoders. `late_files.py` has
the formats of late-interaction models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model.artifact.late_files import is_late_interaction
from model.artifact.logit_score import is_logit_score
from model.artifact.modules import ModuleEntry, listed_modules, read_object, transformer_folder
from model.artifact.weight_files import HYBRID_HEADS
from model.errors import ConfigError
from model.numerics.task_head import TaskKind

WITH_TEACHER = "WithTeacher"
"""Ending of the architecture of DeiT with two classifiers."""
_ARCHITECTURES: dict[str, TaskKind] = {
    "ForSequenceClassification": "sequence_classification",
    "ForTokenClassification": "token_classification",
    "ForImageClassification": "sequence_classification",
    f"ForImageClassification{WITH_TEACHER}": "sequence_classification",
}
_TRANSFORMER_TASKS: dict[str, TaskKind] = {
    "sequence-classification": "sequence_classification",
    "fill-mask": "sparse",
}


def task_kind(folder: Path) -> TaskKind | None:
    """Return the kind of task head to serve; None if the checkpoint only gives vectors.

    bge-m3 is recognised by its linear maps, which `modules.json` does not list. Otherwise a
    `modules.json` takes precedence: a classifier or a masked language model that
    sentence-transformers pools to vectors only gives vectors.
    """
    if is_late_interaction(folder):
        return "late_interaction"
    if any((folder / name).is_file() for name in HYBRID_HEADS):
        return "hybrid"
    modules = listed_modules(folder)
    if modules is not None:
        return _by_modules(folder, modules)
    names = read_object(folder / "config.json").get("architectures") or []
    for name in names if isinstance(names, list) else []:
        for ending, kind in _ARCHITECTURES.items():
            if str(name).endswith(ending):
                return kind
    return None


def sparse_pooling(folder: Path) -> dict[str, Any]:
    """Return `pooling` and `activation` of a sparse encoder, from its SpladePooling's config."""
    entry = next(m for m in listed_modules(folder) or () if m.kind == "SpladePooling")
    path = entry.folder / "config.json"
    config = read_object(path)
    pooling = config.get("pooling_strategy", "max")
    activation = config.get("activation_function", "relu")
    if pooling not in ("max", "sum"):
        raise ConfigError(f"{path}: pooling_strategy {pooling!r} is not supported; max and sum are")
    if activation not in ("relu", "log1p_relu"):
        raise ConfigError(
            f"{path}: activation_function {activation!r} is not supported; relu and log1p_relu are"
        )
    return {"pooling": pooling, "activation": activation}


def _by_modules(folder: Path, modules: list[ModuleEntry]) -> TaskKind | None:
    kinds = [module.kind for module in modules]
    settings = transformer_folder(folder) / "sentence_bert_config.json"
    named = read_object(settings).get("transformer_task")
    if kinds[:1] == ["MLMTransformer"]:
        named = named or "fill-mask"
    kind = _TRANSFORMER_TASKS.get(str(named))
    if is_logit_score(modules):
        return "sequence_classification"
    expected = {"sequence_classification": 1, "sparse": 2}
    if kind is None or len(kinds) != expected[kind]:
        return None
    return None if kind == "sparse" and kinds[1] != "SpladePooling" else kind
