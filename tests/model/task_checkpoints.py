"""Small random checkpoints with task heads, as transformers itself writes them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

from tests.model.checkpoints import TINY, edit_json, write_tokenizer

_OWN: dict[str, dict[str, Any]] = {
    "Albert": {"embedding_size": 6},
    "DebertaV2": {
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_buckets": 8,
        "type_vocab_size": 0,
    },
    "DistilBert": {"dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 20},
    "Electra": {"embedding_size": 6},
    "Gte": {"pad_token_id": 0},
    "ModernBert": {
        "classifier_pooling": "mean",
        "pad_token_id": 0,
        "cls_token_id": 2,
        "sep_token_id": 3,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
}
FAMILIES = ("Albert", "Bert", "DebertaV2", "DistilBert", "Electra", "Gte", "MPNet")
FAMILIES += ("ModernBert", "Roberta", "XLMRoberta")
"""Names of families in transformers' classes."""


def write_task_checkpoint(
    folder: Path, task: str = "ForSequenceClassification", family: str = "Bert", **config: Any
) -> Path:
    """Write a random model of one of transformers' task classes, with a tokenizer.

    Args:
        folder: the folder to write.
        task: suffix of the class's name.
        family: prefix of the class's name.
        config: further fields of the model's config, beside the sizes.

    """
    of_family = getattr(transformers, f"{family}Config")
    fields = {**TINY, **_OWN.get(family, {}), **config}
    torch.manual_seed(0)
    model = getattr(transformers, family + task)(of_family(**fields))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    write_tokenizer(folder)
    edit_json(
        folder / "tokenizer_config.json",
        model_max_length=36,
        **({"tokenizer_class": "DistilBertTokenizer"} if family == "DistilBert" else {}),
    )
    return folder


def write_sparse_checkpoint(
    folder: Path, family: str = "Bert", pooling: str = "max", activation: str = "relu"
) -> Path:
    """Write a random SPLADE model with sentence-transformers."""
    inside = folder.with_name(f"{folder.name}-transformer")
    write_task_checkpoint(inside, "ForMaskedLM", family)
    transformer = Transformer(str(inside), transformer_task="fill-mask")
    splade = SpladePooling(pooling, activation_function=activation)  # type: ignore[arg-type]
    SparseEncoder(modules=[transformer, splade], device="cpu").save(str(folder))
    shutil.rmtree(inside)
    return folder
