"""jina-embeddings-v3: XLM-RoBERTa with rotary positions and an adapter a task. Without torch.

Sturua et al. 2024, https://arxiv.org/abs/2409.10173. Checkpoints have two layouts: transformers'
own, and the published one, whose `model_type` is `xlm-roberta`. The published folder has the
adapters in its weights, and names the tasks and their instructions in `config.json`
(`lora_adaptations`, `lora_rank`, `lora_alpha`, `task_instructions`). The folder for transformers
has an adapter of PEFT for each task: `retrieval_query/adapter_config.json` and
`adapter_model.safetensors` have the adapter of the task `retrieval.query`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from model.config.encoder import AdapterLayout, AttentionLayout
from model.config.files import naming, read_json
from model.errors import ConfigError
from model.families.family import Family
from model.families.keys import Count, PaddingId, SharedKeys
from model.families.rotary import rotary, rotary_layout

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


def task_folders(folder: Path, tasks: tuple[str, ...]) -> dict[Path, PeftConfig]:
    """Return the folders of the tasks' adapters, in order; none if no task has one."""
    paths = {task: folder / folder_name(task) / PEFT_CONFIG for task in tasks}
    if not any(path.is_file() for path in paths.values()):
        return {}
    folders = {}
    for task, path in paths.items():
        missing = next((p for p in (path, path.with_name(PEFT_WEIGHTS)) if not p.is_file()), None)
        if missing:
            raise ConfigError(
                f"{folder} lacks {missing.relative_to(folder)}, the adapter of the task {task}, "
                "which config.json names in lora_adaptations: fetch it too"
            )
        with naming(path):
            folders[path.parent] = PeftConfig.model_validate(read_json(path))
    return folders


def with_task_fields(folder: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a `config.json` with the adapters that its folder has."""
    tasks = task_names(folder, fields)
    if not tasks:
        return dict(fields)
    folders = task_folders(folder, tasks)
    rank = {"lora_rank": max(own.r for own in folders.values())} if folders else {}
    return {**fields, "lora_adaptations": list(tasks), **rank}


_BASES = {JINA_V3: 20000.0, "xlm-roberta": 10000.0}
"""`model_type` → default base of rotary positions."""


class JinaEmbeddingsV3Config(SharedKeys):
    """Keys of the `config.json` of jina-embeddings-v3, with the defaults of transformers."""

    vocab_size: Count = 250002
    hidden_size: Count = 1024
    num_hidden_layers: Count = 24
    num_attention_heads: Count = 16
    intermediate_size: Count = 4096
    max_position_embeddings: Count = 8194
    type_vocab_size: Literal[1] = 1
    layer_norm_eps: float = Field(gt=0, default=1e-5)
    pad_token_id: PaddingId = 1
    position_embedding_type: Literal["rotary"] = "rotary"  # type: ignore[assignment]
    rotary_emb_interleaved: Literal[False] = False
    rotary_emb_scale_base: None = None
    rotary_scaling_factor: None = None
    lora_adaptations: list[str] | None = None
    lora_rank: Count = 4

    def _layouts(self) -> dict[str, Any]:
        positions = rotary(self._fields, "rotary_emb_base", _BASES[self.model_type])
        layouts: dict[str, Any] = {
            "model_type": JINA_V3,
            "max_position_embeddings": self.longest,
            "attention": AttentionLayout(**rotary_layout([positions] * self.num_hidden_layers)),
            "embeddings": {"positions": "none"},
        }
        if tasks := self.lora_adaptations:
            layouts["adapters"] = AdapterLayout(count=len(tasks), rank=self.lora_rank)
            layouts["type_vocab_size"] = len(tasks) + 1
        return layouts


_RENAMES = (
    (r"\.parametrizations\.weight\.original$", ".weight"),
    (r"\.parametrizations\.weight\.0\.lora_", ".lora_"),
)
FAMILIES = {JINA_V3: Family(JinaEmbeddingsV3Config.read, "roberta.", renames=_RENAMES)}
