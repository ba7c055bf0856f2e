"""Adapters of a checkpoint, one a task, as jina-embeddings-v3 has them. Without torch.

The published folder has the adapters in its weights, and names the tasks and their instructions in
`config.json` (`lora_adaptations`, `lora_rank`, `lora_alpha`, `task_instructions`). The folder for
transformers has an adapter of PEFT for each task: `retrieval_query/adapter_config.json` and
`adapter_model.safetensors` have the adapter of the task `retrieval.query`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from model.config.files import naming, read_json
from model.errors import ConfigError

PEFT_CONFIG = "adapter_config.json"
PEFT_WEIGHTS = "adapter_model.safetensors"
JINA_V3 = "jina_embeddings_v3"


class PeftConfig(BaseModel):
    """Keys of PEFT's `adapter_config.json`; values that would change the computation are errors."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    peft_type: Literal["LORA"]
    r: int = Field(gt=0)
    lora_alpha: float = Field(gt=0)
    bias: Literal["none"] = "none"
    use_rslora: Literal[False] = False
    use_dora: Literal[False] = False
    lora_bias: Literal[False] = False
    rank_pattern: dict[str, Any] | None = Field(max_length=0, default=None)
    alpha_pattern: dict[str, Any] | None = Field(max_length=0, default=None)
    modules_to_save: list[str] | None = Field(max_length=0, default=None)
    layers_to_transform: None = None


@dataclass(frozen=True)
class TaskFolder:
    """Adapter of a task in a folder of its own."""

    task: str
    folder: Path
    config: PeftConfig


def is_jina_v3(fields: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` is of jina-embeddings-v3, in either of its two layouts."""
    kind = fields.get("model_type")
    published = kind == "xlm-roberta" and fields.get("position_embedding_type") == "rotary"
    return kind == JINA_V3 or published


def folder_name(task: str) -> str:
    """Return the name of a task's folder."""
    return re.sub(r"\W", "_", task)


def task_names(folder: Path, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the tasks of a checkpoint, in the order of their adapters; none without adapters.

    They are `lora_adaptations` of its config, or else the names of its folders with an adapter.
    """
    if not is_jina_v3(fields):
        return ()
    named = fields.get("lora_adaptations")
    if named is None:
        return tuple(sorted(path.parent.name for path in folder.glob(f"*/{PEFT_CONFIG}")))
    strings = isinstance(named, list) and all(isinstance(name, str) and name for name in named)
    if not strings or len(set(named)) < len(named):
        raise ConfigError(f"{folder / 'config.json'}: lora_adaptations is not a list of task names")
    return tuple(named)


def task_folders(folder: Path, tasks: tuple[str, ...]) -> list[TaskFolder]:
    """Return the tasks' own folders, in order; none if no task has one."""
    paths = {task: folder / folder_name(task) / PEFT_CONFIG for task in tasks}
    if not any(path.is_file() for path in paths.values()):
        return []
    folders = []
    for task, path in paths.items():
        missing = next((p for p in (path, path.with_name(PEFT_WEIGHTS)) if not p.is_file()), None)
        if missing:
            raise ConfigError(
                f"{folder} lacks {missing.relative_to(folder)}, the adapter of the task {task}, "
                "which config.json names in lora_adaptations: fetch it too"
            )
        with naming(path):
            config = PeftConfig.model_validate(read_json(path))
        folders.append(TaskFolder(task, path.parent, config))
    return folders


def with_task_fields(folder: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a `config.json` with the adapters that its folder has."""
    tasks = task_names(folder, fields)
    if not tasks:
        return dict(fields)
    ranks = [own.config.r for own in task_folders(folder, tasks)]
    rank = {"lora_rank": max(ranks)} if ranks else {}
    return {**fields, "lora_adaptations": list(tasks), **rank}
