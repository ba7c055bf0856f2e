"""Conversion of a checkpoint's tokenizer to one self-contained `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, normalizers
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerBase

from model.config.encoder import EncoderConfig
from model.errors import CheckpointError
from model.tokenization.files import Side, TokenizerFiles
from model.tokenization.growth import check_growth
from model.tokenization.piece_classes import m2m_100, marian, siglip
from model.tokenization.pretrained import (
    OF_PIECES,
    backend_class,
    class_name,
    from_files,
    input_names,
)
from model.tokenization.vocabulary import model_ids, vocabulary_size

PLACEHOLDERS = {"image_token", "video_token", "audio_token"}
"""Names of tokens that stand for content other than text."""
_TO_TARGETS = "_switch_to_target_mode"
"""Method of transformers' tokenizers whose targets differ from their sources."""


def load_tokenizer(folder: Path, config: EncoderConfig, *, lowercase: bool) -> Tokenizer:
    """Return the tokenizer that transformers builds from the same folder.

    Padding and truncation are off, because the service controls them. With `lowercase`, texts are
    lower-cased first, as set by `sentence_bert_config.json`.
    """
    return _checked(folder, config.vocab_size, lowercase=lowercase)


def load_target_tokenizer(folder: Path, vocab_size: int, *, lowercase: bool) -> Tokenizer | None:
    """Return the tokenizer of an encoder–decoder's targets; None if it equals the sources'."""
    files = TokenizerFiles.read(folder)
    name = class_name(files)
    if name not in OF_PIECES and not hasattr(backend_class(files, name), _TO_TARGETS):
        return None
    target = _checked(folder, vocab_size, lowercase=lowercase, side="target")
    source = _checked(folder, vocab_size, lowercase=lowercase)
    return None if target.to_str() == source.to_str() else target


def _checked(folder: Path, vocab_size: int, *, lowercase: bool, side: Side = "source") -> Tokenizer:
    files = TokenizerFiles.read(folder)
    tokenizer, pretrained = _build(files, side)
    tokenizer = _without_placeholders(tokenizer, _named(pretrained), vocab_size)
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


def special_tokens(folder: Path) -> Mapping[str, str]:
    """Return the special tokens of a tokenizer by name, such as `mask_token`."""
    return _named(_build(TokenizerFiles.read(folder))[1])


def right_padding(folder: Path) -> str:
    """Return the token with which a tokenizer pads texts at their end."""
    pretrained = _build(TokenizerFiles.read(folder))[1]
    token = _named(pretrained).get("pad_token")
    if token is None or pretrained.padding_side != "right":
        why = "has no pad_token" if token is None else "pads texts at their start (padding_side)"
        raise CheckpointError(f"{folder}: the tokenizer {why}, and the model reads padded texts")
    return token


def _named(pretrained: PreTrainedTokenizerBase) -> dict[str, str]:
    """Return the special tokens of a tokenizer by name."""
    return {name: str(token) for name, token in pretrained.special_tokens_map.items()}


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


def _build(
    files: TokenizerFiles, side: Side = "source"
) -> tuple[Tokenizer, PreTrainedTokenizerBase]:
    """Return a side's tokenizer, and transformers' own."""
    for setting in ("init_inputs", "split_special_tokens"):
        if files.settings.get(setting):
            raise CheckpointError(
                f"{files.folder}: {setting} of tokenizer_config.json is not supported"
            )
    name = class_name(files)
    try:
        if name == "SiglipTokenizer" and side == "source":
            tokenizer, pretrained = siglip(files)
        elif name in OF_PIECES:
            tokenizer, pretrained = (marian if name == "MarianTokenizer" else m2m_100)(files, side)
        else:
            tokenizer, pretrained = _of_backend(files, name, side)
    except CheckpointError:
        raise
    except Exception as error:  # tokenizers and transformers raise errors of any type
        nulls = [
            setting
            for setting, value in files.settings.items()
            if value is None and setting.endswith("_token")
        ]
        hint = f" ({' and '.join(nulls)} is null)" if nulls else ""
        raise CheckpointError(
            f"{files.folder} holds no readable tokenizer: transformers cannot build a {name} of "
            f"its files{hint}: {' '.join(str(error).split())}; where its tokenizer.json is whole, "
            "set tokenizer_class to PreTrainedTokenizerFast in tokenizer_config.json"
        ) from None
    return tokenizer, pretrained


def _of_backend(
    files: TokenizerFiles, name: str, side: Side
) -> tuple[Tokenizer, PreTrainedTokenizerBase]:
    kind = backend_class(files, name)
    files.require(name, kind.vocab_files_names.values())
    pretrained = from_files(kind, files)
    tokenizer = pretrained.backend_tokenizer
    if hasattr(kind, _TO_TARGETS):
        setting = "src_lang" if side == "source" else "tgt_lang"
        if side == "target":
            getattr(pretrained, _TO_TARGETS)()
        language = getattr(pretrained, setting)
        if language is None or tokenizer.token_to_id(language) is None:
            raise CheckpointError(
                f"{files.folder}: {setting} of tokenizer_config.json is {language!r}; set it to a "
                "language of the tokenizer's vocabulary"
            )
    model = tokenizer.model
    if isinstance(model, WordPiece) and model.token_to_id(model.unk_token) is None:
        raise CheckpointError(
            f"{files.folder}: the tokenizer's vocabulary lacks {model.unk_token}, its unknown token"
        )
    return tokenizer, pretrained


def _without_placeholders(
    tokenizer: Tokenizer, special: Mapping[str, str], vocab_size: int
) -> Tokenizer:
    """Drop image and audio tokens for which the encoder has no row.

    EmbeddingGemma has one of the models that it was made from. A text that spells out such a token
    is an ordinary text.
    """
    names = {token for name, token in special.items() if name in PLACEHOLDERS}
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


def reading_segments(config: EncoderConfig, folder: Path) -> EncoderConfig:
    """Return the config, which reads segments if the folder's tokenizer returns them.

    An encoder whose texts have one of several segments reads them, whatever the tokenizer returns.
    """
    reads = config.text_segments > 1 or not config.type_vocab_size or hands_segments(folder)
    return config.model_copy(update={"reads_segments": bool(reads)})


def hands_segments(folder: Path) -> bool:
    """Return whether the tokenizer that transformers builds from a folder returns `token_type_ids`.

    `model_input_names` of `tokenizer_config.json` decides. Without it the class does: BERT's and
    DeBERTa-v2's return them; ALBERT's, DistilBERT's and a bare tokenizer.json do not.
    """
    files = TokenizerFiles.read(folder)
    if "model_input_names" not in files.settings:
        return "token_type_ids" in input_names(files)
    names = files.settings["model_input_names"]
    if not isinstance(names, list):
        raise CheckpointError(
            f"{folder}: model_input_names of tokenizer_config.json is {names!r}, not a list"
        )
    return "token_type_ids" in names


def check_template(folder: Path, tokenizer: Tokenizer, config: EncoderConfig, longest: int) -> None:
    """Raise an error for special tokens that the model cannot take around a text."""
    for kind, pair in (("a text", False), ("a pair of texts", True)):
        special = tokenizer.num_special_tokens_to_add(pair)
        if special >= longest:
            raise CheckpointError(
                f"{folder}: the tokenizer puts {special} special tokens around {kind}, of which "
                f"the model takes {longest} tokens at most: correct the post_processor of "
                "tokenizer.json"
            )
    encoding = tokenizer.encode("a")
    ids, segments = model_ids(tokenizer, encoding), encoding.type_ids
    if max(ids, default=0) >= config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer puts the token {max(ids)} around a text, where the encoder "
            f"has {config.vocab_size}: correct the post_processor of tokenizer.json"
        )
    if not config.knows_segment(max(segments, default=0)):
        raise CheckpointError(
            f"{folder}: the tokenizer gives a text the segment {max(segments)}, where the encoder "
            f"has {config.type_vocab_size} (type_vocab_size): correct the post_processor of "
            "tokenizer.json"
        )
