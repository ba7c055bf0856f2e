"""Special tokens around a text or a pair, as post-processors."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer, models
from tokenizers.processors import ByteLevel, PostProcessor, Sequence, TemplateProcessing

from model.errors import CheckpointError
from model.tokenization.source import Source

Numbered = tuple[str, int]
"""A token and its id."""


def numbered(
    tokenizer: Tokenizer, source: Source, name: str, default: int | None = None
) -> Numbered:
    """A named special token and its id, the default's where the files name it null.

    Raises:
        CheckpointError: they do, and there is no default; or the vocabulary lacks the token.

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
    """BERT's: [CLS] text [SEP], and another text with a [SEP] of its own as segment 1."""
    return TemplateProcessing(
        single=f"{cls[0]}:0 $A:0 {sep[0]}:0",
        pair=f"{cls[0]}:0 $A:0 {sep[0]}:0 $B:1 {sep[0]}:1",
        special_tokens=[cls, sep],
    )


def as_one_segment(bos: Numbered, eos: Numbered) -> TemplateProcessing:
    """RoBERTa's: <s> text </s>, and another text between two </s>, all of it segment 0."""
    return TemplateProcessing(
        single=[bos[0], "$A", eos[0]],
        pair=[bos[0], "$A", eos[0], eos[0], "$B", eos[0]],
        special_tokens=[bos, eos],
    )


def without_segments(processor: PostProcessor) -> PostProcessor:
    """The post-processor with every token in segment 0."""
    if isinstance(processor, ByteLevel):  # of offsets alone
        joined = TemplateProcessing(single=["$A"], pair=["$A", "$B"], special_tokens=[])
        return Sequence([processor, joined])
    content = _written(processor)
    changed = _without_segments(content["post_processor"])
    return Tokenizer.from_str(json.dumps(content | {"post_processor": changed})).post_processor


def _written(processor: PostProcessor) -> dict[str, Any]:
    """The content of the tokenizer.json of a tokenizer with nothing but a post-processor."""
    carrier = Tokenizer(models.BPE())
    carrier.post_processor = processor
    content: dict[str, Any] = json.loads(carrier.to_str())
    return content


def _without_segments(fields: dict[str, Any]) -> dict[str, Any]:
    kind = fields["type"]  # RoBERTa's has one segment
    if kind == "Sequence":
        return fields | {"processors": [_without_segments(each) for each in fields["processors"]]}
    if kind == "TemplateProcessing":
        return fields | {
            name: [
                {piece: of_piece | {"type_id": 0} for piece, of_piece in item.items()}
                for item in fields[name]
            ]
            for name in ("single", "pair")
        }
    if kind == "BertProcessing":
        bert = as_segments(tuple(fields["cls"]), tuple(fields["sep"]))
        return _without_segments(_written(bert)["post_processor"])
    return fields


def as_configured(tokenizer: Tokenizer, source: Source) -> TemplateProcessing:
    """What `add_bos_token` and `add_eos_token` ask for, by default neither."""
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
