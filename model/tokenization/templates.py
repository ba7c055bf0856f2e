"""Special tokens around a text or a pair, as post-processors."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from model.config.encoder import EncoderConfig
from model.errors import CheckpointError
from model.tokenization.source import Source
from model.tokenization.vocabulary import model_ids

Numbered = tuple[str, int]
"""Token and its id."""


def numbered(
    tokenizer: Tokenizer, source: Source, name: str, default: int | None = None
) -> Numbered:
    """Return a named special token and its id; the default id if the files set the token to null.

    Raises:
        CheckpointError: the token is null without a default id, or missing from the vocabulary.

    """
    token = source.name(name)
    index = tokenizer.token_to_id(token) if name in source.special else default
    if index is None:
        reason = (
            f"vocabulary lacks {token}, its {name}"
            if name in source.special
            else f"{name} is null; name one in tokenizer_config.json"
        )
        raise CheckpointError(f"{source.files.folder}: the tokenizer's {reason}")
    return token, index


def as_segments(cls: Numbered, sep: Numbered) -> TemplateProcessing:
    """Return BERT's template: [CLS] text [SEP], and a second text with [SEP] as segment 1."""
    return TemplateProcessing(
        single=f"{cls[0]}:0 $A:0 {sep[0]}:0",
        pair=f"{cls[0]}:0 $A:0 {sep[0]}:0 $B:1 {sep[0]}:1",
        special_tokens=[cls, sep],
    )


def as_one_segment(bos: Numbered, eos: Numbered) -> TemplateProcessing:
    """Return RoBERTa's template: <s> text </s>, a second text between two </s>; all segment 0."""
    return TemplateProcessing(
        single=[bos[0], "$A", eos[0]],
        pair=[bos[0], "$A", eos[0], eos[0], "$B", eos[0]],
        special_tokens=[bos, eos],
    )


def as_configured(tokenizer: Tokenizer, source: Source) -> TemplateProcessing:
    """Return the template of `add_bos_token` and `add_eos_token`; by default neither is added."""
    tokens = {
        name: numbered(tokenizer, source, name)
        for name in ("bos_token", "eos_token")
        if source.flags.get(f"add_{name}") and name in source.special
    }
    single, second = (
        " ".join(
            f"{part}:{segment}"
            for part in (
                *(token for name, (token, _) in tokens.items() if name == "bos_token"),
                text,
                *(token for name, (token, _) in tokens.items() if name == "eos_token"),
            )
        )
        for segment, text in enumerate(("$A", "$B"))
    )
    return TemplateProcessing(
        single=single, pair=f"{single} {second}", special_tokens=list(tokens.values())
    )


def check_template(folder: Path, tokenizer: Tokenizer, config: EncoderConfig, longest: int) -> None:
    """Raise an error for special tokens that the model cannot take around a text.

    Args:
        folder: folder of the tokenizer.
        tokenizer: the tokenizer without truncation.
        config: config of the encoder that reads the tokens.
        longest: maximum number of tokens of a text.

    Raises:
        CheckpointError: there are too many, or the encoder lacks such a token or segment.

    """
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
