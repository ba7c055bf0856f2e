"""Small random static embeddings, in the layouts of sentence-transformers and model2vec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding
from tokenizers import Tokenizer, processors

from tests.model.checkpoints import write_tokenizer
from tests.model.sentences import write_modules

FEATURES = 6


def write_static(folder: Path, **settings: Any) -> Path:
    """Write a static embedding with sentence-transformers: a table, a Dense and a Normalize.

    Its tokenizer has a post-processor, whose special tokens are not part of a text.

    Args:
        folder: the folder to write.
        settings: arguments of SentenceTransformer, such as prompts.

    """
    torch.manual_seed(0)
    tokenizer = tokenizer_of(folder.with_name(f"{folder.name}-tokenizer"))
    table = torch.randn(tokenizer.get_vocab_size(), FEATURES)
    modules = [StaticEmbedding(tokenizer, table), Dense(FEATURES, 4), Normalize()]
    SentenceTransformer(modules=modules, device="cpu", **settings).save(str(folder))
    return folder


def write_model2vec(folder: Path) -> Path:
    """Write a static embedding with model2vec's keys, whose tokens share weighted rows."""
    tokenizer = tokenizer_of(folder)
    generator = np.random.default_rng(0)
    size = tokenizer.get_vocab_size()
    tensors = {
        "embeddings": generator.standard_normal((20, FEATURES)).astype(np.float16),
        "mapping": generator.integers(0, 20, size),
        "weights": generator.random(size),
    }
    save_file(tensors, folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "model2vec", "normalize": true}')
    write_modules(folder, "StaticEmbedding", "Normalize", first=".")
    return folder


def tokenizer_of(folder: Path) -> Tokenizer:
    folder.mkdir(parents=True)
    write_tokenizer(folder)
    tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for path in folder.iterdir():
        path.unlink()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer
