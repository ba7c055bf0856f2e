"""Small random checkpoints in Hugging Face's layout, as transformers itself writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertConfig, BertModel, BertTokenizer

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = (*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "cat", ".")
TINY: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 40,
}


def write_checkpoint(folder: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a random BERT with its tokenizer and the parameters of its score.

    Weights are ten times as large as BERT's initial ones, so that attention is far from uniform.
    """
    config = TINY | overrides
    torch.manual_seed(seed)
    reference = BertModel(BertConfig(**config, initializer_range=0.2))
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    reference.save_pretrained(folder)
    edit_json(folder / "config.json", **overrides)
    edit_weights(folder, **score_parameters(config))
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write a WordPiece tokenizer of single letters and two words."""
    BertTokenizer(vocab={token: i for i, token in enumerate(VOCABULARY)}).save_pretrained(folder)


def score_parameters(config: dict[str, Any]) -> dict[str, Tensor]:
    """Return random parameters of the config's score, by their checkpoint keys."""
    n = config["num_attention_heads"]
    p = config["hidden_size"] // n
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "bilinear": {"weight": (n, p, p), "bias": (n,)},
        "additive": {"query_weight": (n, p, p), "key_weight": (n, p, p), "vector": (n, p)},
    }
    return {
        f"encoder.layer.{layer}.attention.self.score.{name}": torch.randn(shape)
        for layer in range(config["num_hidden_layers"])
        for name, shape in shapes.get(config.get("attention_score", ""), {}).items()
    }


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None removes a key."""
    content = json.loads(path.read_text()) if path.exists() else {}
    content |= changes
    kept = {key: value for key, value in content.items() if value is not None}
    path.write_text(json.dumps(kept))


def edit_weights(folder: Path, **changes: Tensor) -> None:
    """Set tensors of `model.safetensors`."""
    path = folder / "model.safetensors"
    save_file(load_file(path) | changes, path, metadata={"format": "pt"})
