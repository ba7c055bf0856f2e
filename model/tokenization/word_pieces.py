"""Tokenizers of BERT and MPNet (WordPiece: Wu et al. 2016, https://arxiv.org/abs/1609.08144)."""

from __future__ import annotations

import dataclasses

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from model.errors import CheckpointError
from model.tokenization.declared import NAMED
from model.tokenization.source import Source, TokenizerClass
from model.tokenization.templates import as_segments, numbered


def _word_pieces(source: Source) -> Tokenizer:
    words, unknown = source.words(), source.name("unk_token")
    if unknown not in words:
        raise CheckpointError(
            f"{source.files.folder}: the tokenizer's vocabulary lacks {unknown}, its unknown token"
        )
    tokenizer = Tokenizer(models.WordPiece(words, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=source.flags.get("tokenize_chinese_chars", True),
        strip_accents=source.flags.get("strip_accents"),
        lowercase=source.flags.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _complete_bert(tokenizer: Tokenizer, source: Source) -> None:
    cls = numbered(tokenizer, source, "cls_token", 2)
    tokenizer.post_processor = as_segments(cls, numbered(tokenizer, source, "sep_token", 3))


def _complete_mpnet(tokenizer: Tokenizer, source: Source) -> None:
    tokenizer.post_processor = processors.RobertaProcessing(
        numbered(tokenizer, source, "sep_token", 2),
        numbered(tokenizer, source, "cls_token", 0),
        add_prefix_space=False,
    )


BERT = TokenizerClass(
    kind="WordPiece",
    build=_word_pieces,
    complete=_complete_bert,
    named={
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    },
    vocabulary_files=("vocab.txt",),
    segments=True,
)
DISTILBERT = dataclasses.replace(BERT, segments=False)
MPNET = TokenizerClass(
    kind="WordPiece",
    build=_word_pieces,
    complete=_complete_mpnet,
    named={
        "bos_token": "<s>",
        "eos_token": "</s>",
        "sep_token": "</s>",
        "cls_token": "<s>",
        "unk_token": "[UNK]",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
    as_added={name: {"lstrip": name == "mask_token"} for name in NAMED},
    vocabulary_files=("vocab.txt",),
)
