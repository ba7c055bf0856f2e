"""Random checkpoints of encoder families, in the sizes of common encoders.

Weights are seeded, and spread wide enough for attention to be far from uniform. The tokenizer and
its vocabulary come from another checkpoint. The cost of a token does not depend on any of them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, PreTrainedConfig

from model.families.registry import read_config

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
_BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_WIDTH = 0.06
"""Standard deviation of weights."""


@dataclass(frozen=True)
class Build:
    """Family and sizes of an encoder, as its `config.json` names them."""

    model_type: str
    fields: Mapping[str, Any]

    def config(self, vocab_size: int) -> PreTrainedConfig:
        """Return transformers' config; its special tokens are within the vocabulary."""
        tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 2)
        own = {"vocab_size": vocab_size, "pad_token_id": 1, "initializer_range": _WIDTH}
        return AutoConfig.for_model(self.model_type, **tokens | own | self.fields)


BUILDS: Mapping[str, Build] = {
    "ModernBERT-base": Build(
        "modernbert",
        _BASE
        | {
            "num_hidden_layers": 22,
            "intermediate_size": 1152,
            "max_position_embeddings": 8192,
        },
    ),
    "BERT-base": Build("bert", _BASE | {"num_hidden_layers": 12, "max_position_embeddings": 512}),
    "XLM-R-base": Build(
        "xlm-roberta",
        _BASE
        | {
            "num_hidden_layers": 12,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
        },
    ),
    "MPNet-base": Build("mpnet", _BASE | {"num_hidden_layers": 12, "max_position_embeddings": 514}),
    "Qwen3-0.6B-of-4-layers": Build(
        "qwen3",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
            "max_position_embeddings": 32768,
        },
    ),
    "DeBERTa-v3-base-of-4-layers": Build(
        "deberta-v2",
        _BASE
        | {
            "num_hidden_layers": 4,
            "max_position_embeddings": 512,
            "relative_attention": True,
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
        },
    ),
}


def write(build: Build, folder: Path, like: Path) -> Path:
    """Write a build's checkpoint into `folder` with the tokenizer of `like`, unless it exists."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            checkpoint = Path(scratch) / "checkpoint"
            torch.manual_seed(0)
            config = build.config(read_config(like).vocab_size)
            AutoModel.from_config(config).save_pretrained(checkpoint)
            for name in TOKENIZER_FILES:
                if (like / name).exists():
                    shutil.copyfile(like / name, checkpoint / name)
            checkpoint.rename(folder)
    return folder
