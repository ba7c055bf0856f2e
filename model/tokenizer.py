"""A checkpoint's tokenizer as one self-contained `tokenizer.json`."""

from __future__ import annotations

import json
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

Settings = dict[str, Any]

_BERT_CLASSES = {
    "BertTokenizer",
    "ConvBertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "LayoutLMTokenizer",
    "MobileBertTokenizer",
    "SqueezeBertTokenizer",
}
"""The names, but for a final "Fast", under which transformers builds BERT's tokenizer."""

_BERT_SPECIAL_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_NAMED = ("bos_token", "eos_token", *_BERT_SPECIAL_TOKENS)


def load_tokenizer(folder: Path, config: EncoderConfig, *, lowercase: bool) -> Tokenizer:
    """The tokenizer that transformers 5 would build from the same folder.

    As there, a BERT tokenizer is made anew from its vocabulary, its added tokens and the flags
    of `tokenizer_config.json`, and from nothing else of `tokenizer.json`; a tokenizer of
    any other class is its `tokenizer.json`. Padding and truncation are off: both
    are the service's own.

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
        raise CheckpointError(f"{folder} holds no readable tokenizer: {reason}") from None
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
    settings = _settings(folder)
    file, vocabulary = folder / "tokenizer.json", folder / "vocab.txt"
    stored = Tokenizer.from_file(str(file)) if file.is_file() else None
    name = settings.get("tokenizer_class") or _read(folder / "config.json").get("tokenizer_class")
    if name and str(name).removesuffix("Fast") not in _BERT_CLASSES:
        if stored is None:
            raise CheckpointError(f"{folder} holds no tokenizer.json, which a {name} needs")
        stored.add_tokens(_added_tokens(folder, settings, stored))
        return stored
    if stored:
        words = stored.get_vocab(with_added_tokens=False)
    elif vocabulary.is_file():
        words = models.WordPiece.read_file(str(vocabulary))
    else:
        raise CheckpointError(f"{folder} holds neither tokenizer.json nor vocab.txt")
    settings = _BERT_SPECIAL_TOKENS | settings
    unknown = _special(settings["unk_token"]).content
    if unknown not in words:
        raise CheckpointError(f"{folder}: the tokenizer's vocabulary lacks {unknown}")
    return _bert(words, settings, _added_tokens(folder, settings, stored))


def _bert(words: dict[str, int], settings: Settings, added: list[AddedToken]) -> Tokenizer:
    unknown, cls, sep = (
        _special(settings[name]).content for name in ("unk_token", "cls_token", "sep_token")
    )
    tokenizer = Tokenizer(models.WordPiece(words, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_tokens(added)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
    return tokenizer


def _settings(folder: Path) -> Settings:
    """`tokenizer_config.json`, and what older versions keep beside it."""
    settings = _read(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in settings:
        settings |= _read(folder / "special_tokens_map.json")
    return {name: value for name, value in settings.items() if value is not None}


def _added_tokens(folder: Path, settings: Settings, stored: Tokenizer | None) -> list[AddedToken]:
    """The tokens that a text may hold whole, in the order in which new ones get their ids."""
    special = [
        _special(value)
        for name, value in (dict.fromkeys(_NAMED) | settings).items()
        if name.endswith("_token") and isinstance(value, str | dict)
    ]
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    special += map(_special, extra.values() if isinstance(extra, dict) else extra)
    names = {token.content for token in special}

    by_id: dict[int, AddedToken] = {}
    if "added_tokens_decoder" in settings:
        for index, fields in settings["added_tokens_decoder"].items():
            by_id[int(index)] = AddedToken(**fields)
    else:
        for content, index in _read(folder / "added_tokens.json").items():
            by_id[index] = AddedToken(content, normalized=content not in names)
        by_id |= stored.get_added_tokens_decoder() if stored else {}
    added = [token for _, token in sorted(by_id.items(), key=lambda item: item[0])]
    for token in added:
        token.special = token.special or token.content in names
    known = {token.content for token in added}
    return added + [token for token in special if token.content not in known]


def _special(value: str | dict[str, Any]) -> AddedToken:
    if isinstance(value, str):
        return AddedToken(value, special=True)
    fields = {name: field for name, field in value.items() if name != "__type"}
    return AddedToken(**fields | {"special": True})


def _read(path: Path) -> Settings:
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return content
