"""Conversion of a checkpoint's tokenizer to one self-contained `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, normalizers

from model.config.encoder import EncoderConfig
from model.errors import CheckpointError
from model.tokenization.classes import find_class
from model.tokenization.declared import Declared, add_tokens, read_declared, special_tokens
from model.tokenization.files import TokenizerFiles
from model.tokenization.growth import check_growth
from model.tokenization.source import Side, Source
from model.tokenization.templates import as_configured
from model.tokenization.vocabulary import vocabulary_size

PLACEHOLDERS = {"image_token", "video_token", "audio_token"}
"""Names of tokens that stand for content other than text."""


def load_tokenizer(folder: Path, config: EncoderConfig, *, lowercase: bool) -> Tokenizer:
    """Return the tokenizer that transformers 5 would build from the same folder.

    As in transformers, tokenizers of most classes are rebuilt from their vocabulary, their added
    tokens and the flags of `tokenizer_config.json`, and from little else of `tokenizer.json`; a
    tokenizer without a specific class is its `tokenizer.json`. Padding and truncation are off,
    because the service controls them.

    Args:
        folder: the checkpoint.
        config: config of the encoder, whose vocabulary bounds the token ids.
        lowercase: whether texts are lower-cased first, as set by `sentence_bert_config.json`.

    Raises:
        CheckpointError: there is no tokenizer, it is damaged or not supported, or its ids exceed
            the vocabulary.

    """
    return _checked(folder, config.vocab_size, lowercase=lowercase)


def load_target_tokenizer(folder: Path, vocab_size: int, *, lowercase: bool) -> Tokenizer | None:
    """Return the tokenizer of an encoder–decoder's targets; None if it equals the sources'.

    Args:
        folder: the checkpoint.
        vocab_size: bound on the token ids.
        lowercase: as for the sources.

    Raises:
        CheckpointError: as for `load_tokenizer`; or no language is named.

    """
    _, kind = find_class(TokenizerFiles.read(folder))
    if kind is None or not kind.sided:
        return None
    target = _checked(folder, vocab_size, lowercase=lowercase, side="target")
    source = _checked(folder, vocab_size, lowercase=lowercase)
    return None if target.to_str() == source.to_str() else target


def _checked(folder: Path, vocab_size: int, *, lowercase: bool, side: Side = "source") -> Tokenizer:
    try:
        tokenizer, source = _build(TokenizerFiles.read(folder), side)
        tokenizer = _without_placeholders(tokenizer, source, vocab_size)
    except CheckpointError:
        raise
    except Exception as error:  # tokenizers raises plain Exception
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{folder} holds no readable tokenizer: {reason}") from None
    rules = {"normalizer": tokenizer.normalizer, "decoder": tokenizer.decoder}
    check_growth(
        str(folder), {name: json.loads(step.__getstate__()) for name, step in rules.items() if step}
    )
    if lowercase:
        steps = [normalizers.Lowercase(), tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([step for step in steps if step])
    tokenizer.no_padding()
    tokenizer.no_truncation()
    size = vocabulary_size(tokenizer)
    if size > vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer's ids reach {size - 1}, "
            f"the encoder's vocabulary holds {vocab_size}"
        )
    return tokenizer


def special_token(folder: Path, name: str) -> str | None:
    """Return the token with a name such as `mask_token`; None if the tokenizer has none.

    Raises:
        CheckpointError: there is no tokenizer, or it is damaged or not supported.

    """
    _, source = _build(TokenizerFiles.read(folder))
    return str(source.special[name]) if name in source.special else None


def add_markers(tokenizer: Tokenizer, prompts: Sequence[str]) -> None:
    """Make a tokenizer read the marker at the start of each prompt as one token.

    ColBERT's checkpoints put `[unused0]`, or an added token, before a text by its id. A prompt has
    no marker if the vocabulary has neither the prompt nor its first word.
    """
    for prompt in filter(str.strip, prompts):
        candidates = (prompt, prompt.split(None, 1)[0])
        marker = next(
            (word for word in candidates if tokenizer.token_to_id(word) is not None), None
        )
        if marker and tokenizer.encode(marker, add_special_tokens=False).tokens != [marker]:
            token = AddedToken(marker, normalized=False, special=True)
            tokenizer.add_special_tokens([token])


def _build(files: TokenizerFiles, side: Side = "source") -> tuple[Tokenizer, Source]:
    name, kind = find_class(files)
    if files.settings.get("init_inputs"):
        raise CheckpointError(f"{files.folder}: init_inputs of tokenizer_config.json are not read")
    declared = read_declared(files)
    if declared.flags.get("split_special_tokens"):
        raise CheckpointError(
            f"{files.folder}: split_special_tokens of tokenizer_config.json is not supported"
        )
    if kind is None:
        files.require(name)
        tokenizer = Tokenizer.from_file(str(files.folder / "tokenizer.json"))
        source = _as_stored(files, declared, tokenizer)
    else:
        source = kind.source(name, files, declared, side)
        tokenizer = kind.build(source)
        if kind.kind != "SentencePiece":
            tokenizer.post_processor = source.post_processor() or tokenizer.post_processor
    if kind is None or kind.kind != "SentencePiece":  # a SentencePiece tokenizer already has them
        add_tokens(tokenizer, source.special, source.extra, declared.added)
    if tokenizer.post_processor is None:
        tokenizer.post_processor = as_configured(tokenizer, source)
    if kind and kind.complete:
        kind.complete(tokenizer, source)
    return tokenizer, source


def _as_stored(files: TokenizerFiles, declared: Declared, tokenizer: Tokenizer) -> Source:
    padding = tokenizer.padding
    named = ({"pad_token": padding["pad_token"]} if padding else {}) | declared.named
    special = special_tokens(named, declared)
    return Source(files, declared.flags, named, special, declared.extra or [])


def _without_placeholders(tokenizer: Tokenizer, source: Source, vocab_size: int) -> Tokenizer:
    """Drop image and audio tokens for which the encoder has no row.

    EmbeddingGemma has one of the models that it was made from. A text that spells out such a token
    is an ordinary text.
    """
    names = {str(token) for name, token in source.special.items() if name in PLACEHOLDERS}
    added = tokenizer.get_added_tokens_decoder().items()
    dropped = {token.content for index, token in added if index >= vocab_size} & names
    if not dropped:
        return tokenizer
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [
        token for token in content["added_tokens"] if token["content"] not in dropped
    ]
    kept = Tokenizer.from_str(json.dumps(content))
    kept.model = tokenizer.model
    return kept
