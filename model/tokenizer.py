"""A checkpoint's tokenizer, made self-contained: one `tokenizer.json` that hides no setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from model.config import EncoderConfig
from model.errors import CheckpointError


def load_tokenizer(folder: Path, config: EncoderConfig, *, lowercase: bool) -> Tokenizer:
    """The tokenizer that transformers would build from the same folder.

    Reads `tokenizer.json`, or builds BERT's from `vocab.txt`. Padding and truncation that the
    file carries are switched off: both are the service's own. As in transformers, the flags of
    `tokenizer_config.json` overrule the normalizer of a BERT tokenizer.

    Args:
        folder: the checkpoint.
        config: bounds the token ids.
        lowercase: lower-case a text first, as `sentence_bert_config.json` can ask.

    Raises:
        CheckpointError: there is no tokenizer, it is damaged, or its ids exceed the vocabulary.

    """
    flags = _flags(folder / "tokenizer_config.json")
    file, vocabulary = folder / "tokenizer.json", folder / "vocab.txt"
    if file.is_file():
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises the bare class
            raise CheckpointError(f"{file} is not a readable tokenizer: {error}") from None
    elif vocabulary.is_file():
        tokenizer = _wordpiece(vocabulary)
    else:
        raise CheckpointError(f"{folder} holds neither tokenizer.json nor vocab.txt")
    if isinstance(tokenizer.normalizer, normalizers.BertNormalizer):
        _apply(flags, tokenizer.normalizer)
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


def _flags(path: Path) -> dict[str, Any]:
    try:
        flags = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(flags, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return flags if str(flags.get("tokenizer_class", "Bert")).startswith("Bert") else {}


def _apply(flags: dict[str, Any], normalizer: normalizers.BertNormalizer) -> None:
    names = {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    }
    for flag, attribute in names.items():
        if flag in flags:
            setattr(normalizer, attribute, flags[flag])


def _wordpiece(path: Path) -> Tokenizer:
    lines = path.read_text(encoding="utf-8").split("\n")
    vocabulary = {token.rstrip("\r"): index for index, token in enumerate(lines) if token}
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    missing = [token for token in special if token not in vocabulary]
    if missing:
        raise CheckpointError(f"{path} lacks {', '.join(missing)}")
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(special)
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer
