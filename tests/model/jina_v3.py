"""Random tiny jina-embeddings-v3 in its published layout and in that for transformers.

The oracle of a task is transformers' own model with the adapter merged by hand: W + α/r · B A for
linear maps, and W + α/r · A B for tables of embeddings.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import JinaEmbeddingsV3Config, JinaEmbeddingsV3Model

from tests.model.families.parity import SIZES, randomized
from tests.model.sentences import write_modules
from tests.model.tokenizer_folders import VOCAB_SIZE, write_tokenizer_folder

TASKS = ("retrieval.query", "retrieval.passage", "text-matching")
INSTRUCTIONS = {
    "retrieval.query": "query of: ",
    "retrieval.passage": "passage of: ",
    "text-matching": "",
}
RANK, ALPHA = 2, 3.0
PUBLISHED: dict[str, Any] = {
    "model_type": "xlm-roberta",
    "architectures": ["XLMRobertaModel"],
    "position_embedding_type": "rotary",
    "rotary_emb_base": 20000.0,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "lora_adaptations": list(TASKS),
    "lora_rank": RANK,
    "lora_alpha": ALPHA,
    "task_instructions": INSTRUCTIONS,
    "matryoshka_dimensions": [8, 16, 24],
}
Pair = tuple[Tensor, Tensor]
"""Matrices A `[K, r, d]` and B `[K, p, r]` of a linear map; A `[K, V, r]` and B `[K, r, H]` of a
table."""


class Reference:
    """transformers' model, and the adapters of its maps by their module's name."""

    def __init__(self, **changes: Any) -> None:
        self.sizes = SIZES | changes
        config = JinaEmbeddingsV3Config(**self.sizes)
        self.base = randomized(JinaEmbeddingsV3Model(config, add_pooling_layer=False))
        generator = torch.Generator().manual_seed(7)
        self.adapters: dict[str, Pair] = {}
        for name, module in self.base.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                rows, columns = module.weight.shape
                table = isinstance(module, nn.Embedding)
                shapes = (
                    ((rows, RANK), (RANK, columns)) if table else ((RANK, columns), (rows, RANK))
                )
                a, b = (
                    0.3 * torch.randn(len(TASKS), *shape, generator=generator) for shape in shapes
                )
                if name.endswith(("k_proj", "v_proj")):  # one A for queries, keys and values
                    a = self.adapters[name[: -len("k_proj")] + "q_proj"][0]
                self.adapters[name] = a, b

    def of(self, task: str | None) -> JinaEmbeddingsV3Model:
        """Return transformers' model with a task's adapter merged; the base model for None."""
        merged = copy.deepcopy(self.base)
        if task is None:
            return merged
        number = TASKS.index(task)
        for name, (a, b) in self.adapters.items():
            module = merged.get_submodule(name)
            table = isinstance(module, nn.Embedding)
            product = a[number] @ b[number] if table else b[number] @ a[number]
            with torch.no_grad():
                module.weight.add_(ALPHA / RANK * product)
        return merged


def write_published(reference: Reference, folder: Path) -> Path:
    """Write the published layout: all adapters in the weights, queries to values in one tensor."""
    tensors: dict[str, Tensor] = {}
    state = reference.base.state_dict()
    for name, module in reference.base.named_modules():
        if name not in reference.adapters:
            if isinstance(module, nn.LayerNorm):
                for part in ("weight", "bias"):
                    tensors[f"{_published(name)}.{part}"] = state[f"{name}.{part}"]
            continue
        if name.endswith(("k_proj", "v_proj")):
            continue
        parts = [name]
        if name.endswith("q_proj"):
            parts = [name.replace("q_proj", f"{role}_proj") for role in "qkv"]
        key = _published(name)
        pairs = [reference.adapters[part] for part in parts]
        prefix = f"{key}.parametrizations.weight"
        tensors[f"{prefix}.original"] = torch.cat([state[f"{part}.weight"] for part in parts])
        tensors[f"{prefix}.0.lora_A"] = pairs[0][0]
        tensors[f"{prefix}.0.lora_B"] = torch.cat([b for _, b in pairs], dim=1)
        if f"{name}.bias" in state:
            tensors[f"{key}.bias"] = torch.cat([state[f"{part}.bias"] for part in parts])
    width = reference.sizes["hidden_size"]
    tensors["roberta.pooler.dense.parametrizations.weight.original"] = torch.ones(width, width)
    tensors["roberta.pooler.dense.parametrizations.weight.0.lora_A"] = torch.ones(3, RANK, width)
    tensors["roberta.pooler.dense.parametrizations.weight.0.lora_B"] = torch.ones(3, width, RANK)
    tensors["roberta.pooler.dense.bias"] = torch.ones(width)
    folder.mkdir(exist_ok=True)
    save_file(
        {key: t.contiguous().clone() for key, t in tensors.items()}, folder / "model.safetensors"
    )
    config = PUBLISHED | reference.sizes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _published(name: str) -> str:
    """Return the published name of a module of transformers."""
    changes = {
        "embeddings.LayerNorm": "emb_ln",
        "self_attn.q_proj": "mixer.Wqkv",
        "self_attn.o_proj": "mixer.out_proj",
        "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
    }
    for own, published in changes.items():
        name = name.replace(own, published)
    return f"roberta.{'encoder.' if name.startswith('layers') else ''}{name}"


def write_with_folders(reference: Reference, folder: Path) -> Path:
    """Write the layout for transformers: an adapter of PEFT in a folder of each task."""
    reference.base.config.lora_adaptations = list(TASKS)
    reference.base.config.task_instructions = INSTRUCTIONS
    reference.base.save_pretrained(folder)
    for number, task in enumerate(TASKS):
        inside = folder / task.replace(".", "_").replace("-", "_")
        inside.mkdir()
        tensors = {}
        for name, (a, b) in reference.adapters.items():
            prefix = f"base_model.model.{name}.lora_"
            if "embeddings" in name:
                tensors[f"{prefix}embedding_A"] = a[number].T.contiguous()
                tensors[f"{prefix}embedding_B"] = b[number].T.contiguous()
            else:
                tensors[f"{prefix}A.weight"] = a[number].clone()
                tensors[f"{prefix}B.weight"] = b[number].clone()
        save_file(tensors, inside / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
        (inside / "adapter_config.json").write_text(json.dumps(config))
    return folder


def served_reference() -> Reference:
    """Return the reference of `write_served`."""
    return Reference(vocab_size=VOCAB_SIZE, num_hidden_layers=2, max_position_embeddings=128)


def write_served(folder: Path, write: Callable[[Reference, Path], Path] = write_published) -> Path:
    """Write a checkpoint with a tokenizer, and the modules of the published folder."""
    write_tokenizer_folder(folder, "XLMRobertaTokenizer")
    write(served_reference(), folder)
    pooling = {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True}
    write_modules(folder, "custom_st.Transformer", "Pooling", "Normalize", Pooling=pooling)
    prompts = {task: INSTRUCTIONS[task] for task in TASKS}
    settings = {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder
