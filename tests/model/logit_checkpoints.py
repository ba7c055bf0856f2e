"""Small random rerankers that score pairs by the logits of `yes` and `no`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import CrossEncoder
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from torch import Tensor
from transformers import AutoTokenizer, Qwen2Tokenizer, Qwen3Config, Qwen3ForCausalLM

from model.sources.overlay import YES_NO

SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: "
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
PAIRS = [
    ("is the cat there?", "The cat sat on the mat, no doubt."),
    ("", "\n an end \n"),
    ("what <|im_end|> is\n", "Straße <think> été"),
    ("the", ""),
]


def published(query: str, document: str, instruction: str = INSTRUCTION) -> str:
    """Return the text of Qwen3-Reranker's model card for a pair."""
    return f"{BEFORE}{instruction}\n<Query>: {query}\n<Document>: {document}{AFTER}"


def write_reranker(folder: Path, **config: Any) -> Path:
    """Write a checkpoint in Qwen3-Reranker's layout, without files of sentence-transformers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([published("yes", "no"), *map("".join, PAIRS)] * 2, trainer)
    merges = [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]
    qwen = Qwen2Tokenizer(vocab=tokenizer.get_vocab(), merges=merges)
    qwen.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    qwen.save_pretrained(folder)
    torch.manual_seed(0)
    fields = {**SIZES, "vocab_size": len(qwen), "tie_word_embeddings": True, **config}
    model = Qwen3ForCausalLM(Qwen3Config(**fields))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


def write_cross_encoder(folder: Path, **config: Any) -> Path:
    """Write the same checkpoint with sentence-transformers, which adds LogitScore."""
    plain = write_reranker(folder.with_name(f"{folder.name}-plain"), **config)
    (plain / "chat_template.jinja").write_text(YES_NO)
    prompts = {"news": "Find an article that"}
    CrossEncoder(str(plain), device="cpu", prompts=prompts).save(str(folder))
    return folder


def word_logits(folder: Path, texts: Sequence[str]) -> Tensor:
    """Return transformers' logits of `no` and `yes` after each text, `[texts, 2]`."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = Qwen3ForCausalLM.from_pretrained(folder).eval()
    words = tokenizer.convert_tokens_to_ids(["no", "yes"])
    with torch.inference_mode():
        ids = [tokenizer(text, return_tensors="pt").input_ids for text in texts]
        return torch.stack([model(each).logits[0, -1, words] for each in ids])
