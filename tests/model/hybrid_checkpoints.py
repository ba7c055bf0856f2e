"""A small random checkpoint in bge-m3's format, and FlagEmbedding's formulas over transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer, XLMRobertaConfig, XLMRobertaModel

from tests.model.checkpoints import TINY
from tests.model.tokenizer_folders import VOCAB_SIZE, write_tokenizer_folder

SIZE = 10
"""Features of a token vector."""


def write_hybrid(folder: Path) -> Path:
    """Write a random XLM-RoBERTa with sentence-transformers' files and the two linear maps."""
    inside = folder.with_name(f"{folder.name}-encoder")
    write_tokenizer_folder(inside, "XLMRobertaTokenizer")
    sizes = TINY | {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 66, "pad_token_id": 1}
    torch.manual_seed(3)
    model = XLMRobertaModel(XLMRobertaConfig(**sizes, type_vocab_size=1, initializer_range=0.3))
    model.save_pretrained(inside)
    transformer = Transformer(str(inside), max_seq_length=64)
    pooling = Pooling(sizes["hidden_size"], "cls")
    SentenceTransformer(modules=[transformer, pooling, Normalize()], device="cpu").save(str(folder))
    hidden = sizes["hidden_size"]
    for name, features in (("colbert_linear", SIZE), ("sparse_linear", 1)):
        torch.save(nn.Linear(hidden, features).half().state_dict(), folder / f"{name}.pt")
    return folder


class Vectors(NamedTuple):
    """Vectors of a text by FlagEmbedding."""

    dense: Tensor
    sparse: dict[int, float]
    colbert: Tensor


class FlagEmbedding:
    """Formulas of FlagEmbedding's M3 (modeling.py, and its inference's m3.py), text by text."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder).eval()
        self._linear = {
            name: torch.load(folder / f"{name}_linear.pt") for name in ("colbert", "sparse")
        }

    def vectors(self, text: str) -> Vectors:
        """Return all vectors of a text."""
        ids = self.tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            hidden = self._model(**ids).last_hidden_state[0]
        dense = functional.normalize(hidden[0], dim=-1)
        colbert = functional.normalize(self._map("colbert", hidden[1:]), dim=-1)
        weights = torch.relu(self._map("sparse", hidden))[:, 0].tolist()
        names = ("cls_token", "eos_token", "pad_token", "unk_token")
        unused = {getattr(self.tokenizer, f"{name}_id") for name in names}
        sparse: dict[int, float] = {}
        for token, weight in zip(ids["input_ids"][0].tolist(), weights, strict=True):
            if token not in unused and weight > 0:
                sparse[token] = max(weight, sparse.get(token, 0))
        return Vectors(dense, sparse, colbert)

    def scores(self, query: str, text: str) -> tuple[float, float, float]:
        """Return the dense, sparse and multi-vector score of a query and a text."""
        first, second = self.vectors(query), self.vectors(text)
        dense = float(first.dense @ second.dense)
        sparse = sum(weight * second.sparse.get(word, 0) for word, weight in first.sparse.items())
        colbert = (first.colbert @ second.colbert.T).max(dim=1).values.sum() / len(first.colbert)
        return dense, sparse, float(colbert)

    def _map(self, name: str, rows: Tensor) -> Tensor:
        linear = self._linear[name]
        return functional.linear(rows, linear["weight"].float(), linear["bias"].float())
