"""Training of the small encoder–decoder, in minutes on two cores.

    python -m examples.spelled_dates.train --out FOLDER
    headscope serve --model FOLDER

The folder is a BART checkpoint as transformers writes it, with other numbers of layers and heads in
the decoder than in the encoder. transformers trains it; Headscope exports and serves it like any
other.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

from examples.spelled_dates.sentences import Pair, pairs

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
BATCH, STEPS, RATE, WARM_UP = 64, 1500, 2e-3, 0.1
IGNORED = -100
"""Label of padding, which the loss leaves out."""


def tokenizer_of(sample: list[Pair]) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words, those of a sample large enough to have them all."""
    words = sorted({word for pair in sample for word in (*pair.source, *pair.target)})
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=64,
    )


def untrained(vocab_size: int) -> BartForConditionalGeneration:
    """A BART with random weights; the same ones each time."""
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=vocab_size,
        d_model=96,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=6,
        decoder_attention_heads=4,
        encoder_ffn_dim=192,
        decoder_ffn_dim=192,
        max_position_embeddings=64,
        dropout=0.0,
        init_std=0.1,  # of so few features; BART's own 0.02 learns nothing here
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=2,
    )
    return BartForConditionalGeneration(config)


def batches(
    tokenizer: PreTrainedTokenizerFast, stream: Iterator[Pair]
) -> Iterator[dict[str, Tensor]]:
    """Batches of token ids, without end."""
    while True:
        some = list(itertools.islice(stream, BATCH))
        inputs = tokenizer([" ".join(p.source) for p in some], padding=True, return_tensors="pt")
        labels = tokenizer([" ".join(p.target) for p in some], padding=True, return_tensors="pt")
        yield {
            "input_ids": inputs["input_ids"],
            "attention_mask": inputs["attention_mask"],
            "labels": labels["input_ids"].masked_fill(labels["attention_mask"] == 0, IGNORED),
        }


def train(out: Path, steps: int = STEPS) -> float:
    """Train and save a checkpoint; returns the last loss, in nats a target token."""
    tokenizer = tokenizer_of(list(itertools.islice(pairs(0), 5000)))
    model = untrained(len(tokenizer)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, total_steps=steps, pct_start=WARM_UP
    )
    loss = torch.tensor(torch.inf)
    for step, batch in enumerate(itertools.islice(batches(tokenizer, pairs(1)), steps), start=1):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step} of {steps}: loss {loss.item():.4f}", flush=True)
    model.eval().save_pretrained(out)
    tokenizer.save_pretrained(out)
    return loss.item()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    train(arguments.out, arguments.steps)


if __name__ == "__main__":
    main()
