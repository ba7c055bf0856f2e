"""Tokenizers of RoBERTa, Qwen2 and Gemma.

Byte pair encoding: Sennrich et al. 2016, https://arxiv.org/abs/1508.07909; over bytes: Radford et
al. 2019.
"""

from __future__ import annotations

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from model.tokenization.source import Source, TokenizerClass
from model.tokenization.templates import numbered

_QWEN2_WORDS = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""Contractions, words with one preceding character, digits, punctuation, and kinds of white
space."""


def _roberta(source: Source) -> Tokenizer:
    tokenizer = Tokenizer(_bytes(source))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=source.flags.get("add_prefix_space", False)
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _complete_roberta(tokenizer: Tokenizer, source: Source) -> None:
    tokenizer.post_processor = processors.RobertaProcessing(
        numbered(tokenizer, source, "sep_token"),
        numbered(tokenizer, source, "cls_token"),
        trim_offsets=source.flags.get("trim_offsets", True),
        add_prefix_space=source.flags.get("add_prefix_space", False),
    )


def _qwen2(source: Source) -> Tokenizer:
    tokenizer = Tokenizer(_bytes(source))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(
                add_prefix_space=bool(source.flags.get("add_prefix_space")), use_regex=False
            ),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _complete_qwen2(tokenizer: Tokenizer, source: Source) -> None:
    """Add all special tokens without the flags that the files may give them."""
    tokens = [*source.special.values(), *source.extra]
    tokenizer.add_tokens([AddedToken(str(token), special=True) for token in tokens])


def _bytes(source: Source) -> models.BPE:
    vocabulary, merges = source.byte_pairs()
    return models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix="")


def _gemma(source: Source) -> Tokenizer:
    vocabulary, merges = source.byte_pairs()
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            merges,
            unk_token=source.name("unk_token"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


ROBERTA = TokenizerClass(
    kind="BPE",
    build=_roberta,
    complete=_complete_roberta,
    named={
        "bos_token": "<s>",
        "eos_token": "</s>",
        "sep_token": "</s>",
        "cls_token": "<s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
    vocabulary_files=("vocab.json", "merges.txt"),
)
QWEN2 = TokenizerClass(
    kind="BPE",
    build=_qwen2,
    complete=_complete_qwen2,
    named=dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"),
    vocabulary_files=("vocab.json", "merges.txt"),
)
GEMMA = TokenizerClass(
    kind="BPE",
    build=_gemma,
    named={
        "unk_token": "<unk>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
)
