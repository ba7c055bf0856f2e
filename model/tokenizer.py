"""A checkpoint's tokenizer, made self-contained: one `tokenizer.json` that hides no setting."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from model.config import EncoderConfig
from model.errors import CheckpointError

_BERT_CLASSES = frozenset(
    f"{name}Tokenizer"
    for name in (
        *("Bert", "ConvBert", "DistilBert", "DPRContextEncoder", "DPRQuestionEncoder", "Electra"),
        *("LayoutLM", "Lxmert", "MobileBert", "SqueezeBert"),
    )
)
"""The class names under which transformers builds BERT's tokenizer."""
_BERT_SPECIAL_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}


def load_tokenizer(folder: Path, config: EncoderConfig, *, lowercase: bool) -> Tokenizer:
    """The tokenizer that transformers 5 would build from the same folder.

    A BERT tokenizer is made anew from its vocabulary, its added tokens and the flags of
    `tokenizer_config.json`; whatever else `tokenizer.json` says is not read, by transformers
    neither. A tokenizer of any other class is what its `tokenizer.json` says. Padding and
    truncation are off: both are the service's own.

    Args:
        folder: the checkpoint.
        config: bounds the token ids.
        lowercase: lower-case a text first, as `sentence_bert_config.json` can ask.

    Raises:
        CheckpointError: there is no tokenizer, it is damaged, or its ids exceed the vocabulary.
    """
    try:
        tokenizer = _build(folder)
    except CheckpointError:
        raise
    except Exception as error:  # tokenizers raises the bare class
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{folder}: the tokenizer's files are not usable: {reason}") from None
    if lowercase:
        steps = [normalizers.Lowercase(), tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([step for step in steps if step])
    tokenizer.no_padding()
    tokenizer.no_truncation()
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer's ids reach {largest}, "
            f"the encoder's vocabulary holds {config.vocab_size}"
        )
    return tokenizer


def _build(folder: Path) -> Tokenizer:
    settings = _read(folder / "tokenizer_config.json")
    name = settings.get("tokenizer_class") or _read(folder / "config.json").get("tokenizer_class")
    is_bert = str(name or "BertTokenizer").removesuffix("Fast") in _BERT_CLASSES
    file, vocabulary = folder / "tokenizer.json", folder / "vocab.txt"
    stored = Tokenizer.from_file(str(file)) if file.is_file() else None
    if stored is None and not (is_bert and vocabulary.is_file()):
        wanted = (
            "neither tokenizer.json nor vocab.txt" if is_bert else f"no tokenizer.json ({name})"
        )
        raise CheckpointError(f"{folder} holds {wanted}")

    # the first that is there: what tokenizer_config.json lists, or all that the others do
    listed = settings.get("added_tokens_decoder")
    added = {int(index): _token(value) for index, value in (listed or {}).items()}
    if listed is None:
        settings |= _read(folder / "special_tokens_map.json")
        added = {index: _token(t) for t, index in _read(folder / "added_tokens.json").items()}
        added |= stored.get_added_tokens_decoder() if stored else {}

    if is_bert:
        settings = _BERT_SPECIAL_TOKENS | {k: v for k, v in settings.items() if v is not None}
        words = (
            stored.get_vocab(with_added_tokens=False)
            if stored
            else models.WordPiece.read_file(str(vocabulary))
        )
        tokenizer = _wordpiece(words, settings)
    else:
        assert stored is not None
        tokenizer = stored
    special = [_token(value) for value in _special_tokens(settings)]
    _add(tokenizer, [added[index] for index in sorted(added)], special)
    if is_bert:
        cls, sep = (_token(settings[name]).content for name in ("cls_token", "sep_token"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
        )
    return tokenizer
