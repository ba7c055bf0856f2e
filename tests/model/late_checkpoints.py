"""Small random late-interaction models in the three published formats."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from transformers import BertTokenizer

from tests.model.checkpoints import TINY, VOCABULARY, edit_json, edit_weights
from tests.model.sentences import write_modules
from tests.model.task_checkpoints import write_task_checkpoint

WORDS = (*VOCABULARY, "[unused0]", "[unused1]", "!", ",")
ADDED = ("[Q] ", "[D] ")
SIZE = 6
_OWN: dict[str, dict[str, Any]] = {
    "ModernBert": {"local_attention": 6, "num_hidden_layers": 4},
    "NomicBert": {"head_dim": 4},
    "Qwen3": {"head_dim": 4, "num_key_value_heads": 1, "pad_token_id": 0},
}
QUERY = "the cat, a b"
DOCUMENTS = ["the cat . a b c !", "x", "!,.", "b a the, the the cat z y", ""]
EXPANSION: dict[str, Any] = {"strategy": "fixed", "length": 12}


def write_encoder(folder: Path, family: str = "Bert", **config: Any) -> Path:
    """Write an encoder, and a tokenizer that knows the markers."""
    sizes = {"vocab_size": len(WORDS) + len(ADDED), **_OWN.get(family, {}), **config}
    write_task_checkpoint(folder, "Model", family, **sizes)
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)})
    tokenizer.add_tokens(list(ADDED))
    tokenizer.save_pretrained(folder)
    name = {"tokenizer_class": "DistilBertTokenizer"} if family == "DistilBert" else {}
    edit_json(folder / "tokenizer_config.json", model_max_length=36, **name)
    return folder


def write_late(
    folder: Path, family: str = "Bert", skipped: Any = (".", "!", "nothing"), **transformer: Any
) -> Path:
    """Write a model with sentence-transformers itself."""
    inside = write_encoder(folder.with_name(f"{folder.name}-encoder"), family)
    torch.manual_seed(1)
    name = "token_embeddings"
    dense = Dense(TINY["hidden_size"], SIZE, bias=True, module_input_name=name)
    modules = [
        Transformer(str(inside), **{"query_expansion": EXPANSION, **transformer}),
        dense,
        MultiVectorMask(skiplist_words=list(skipped)),
        Normalize(module_input_name=name),
    ]
    prompts = {"query": "a ", "document": "the "}
    MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu").save(str(folder))
    return folder


def write_pylate(folder: Path, family: str = "Bert", **settings: Any) -> Path:
    """Write PyLate's format, with two projections, one with a residual."""
    write_encoder(folder, family)
    hidden = TINY["hidden_size"]
    write_modules(folder, "Transformer", *["pylate.models.Dense.Dense"] * 2)
    generator = torch.Generator().manual_seed(2)
    for number, outputs in ((1, hidden), (2, SIZE)):
        inside = folder / f"{number}_Dense"
        edit_json(
            inside / "config.json",
            in_features=hidden,
            out_features=outputs,
            bias=False,
            activation_function="torch.nn.modules.linear.Identity",
            use_residual=number == 1,
        )
        weight = torch.randn(outputs, hidden, generator=generator)
        save_file({"linear.weight": weight}, inside / "model.safetensors")
    usual = {
        "model_type": "ColBERT",
        "similarity_fn_name": "MaxSim",
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": 10,
        "document_length": 20,
        "attend_to_expansion_tokens": False,
        "do_query_expansion": True,
        "skiplist_words": list(string.punctuation),
    }
    edit_json(folder / "config_sentence_transformers.json", **{**usual, **settings})
    return folder


def write_stanford(folder: Path, **metadata: Any) -> Path:
    """Write the format of Stanford's ColBERT: a BERT with a projection beside it."""
    write_encoder(folder)
    path = folder / "model.safetensors"
    save_file(
        {f"bert.{key}": tensor for key, tensor in load_file(path).items()},
        path,
        metadata={"format": "pt"},
    )
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(SIZE, TINY["hidden_size"], generator=generator)
    edit_weights(folder, **{"linear.weight": weight})
    edit_json(folder / "config.json", architectures=["HF_ColBERT"])
    usual = {"dim": SIZE, "query_maxlen": 9, "doc_maxlen": 18, "mask_punctuation": True}
    usual |= {"query_token_id": "[unused0]", "doc_token_id": "[unused1]", "similarity": "cosine"}
    edit_json(folder / "artifact.metadata", **{**usual, **metadata})
    return folder
