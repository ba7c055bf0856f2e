"""Model files of SentencePiece.

Format: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from model.errors import CheckpointError

_PACKAGE = "headscope.sentencepiece"
_FIELDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "Piece": {"piece": (1, "string"), "score": (2, "float"), "type": (3, "int32", "1")},
    "Trainer": {
        "model_type": (3, "int32", "1"),
        "treat_whitespace_as_suffix": (24, "bool"),
        "byte_fallback": (35, "bool"),
    },
    "Normalizer": {
        "precompiled_charsmap": (2, "bytes"),
        "add_dummy_prefix": (3, "bool", "true"),
        "remove_extra_whitespaces": (4, "bool", "true"),
        "escape_whitespaces": (5, "bool", "true"),
    },
    "Model": {"pieces": (1, "Piece"), "trainer": (2, "Trainer"), "normalizer": (3, "Normalizer")},
}
"""Number, type and default of the fields that are read."""
_NORMAL, _USER_DEFINED, _BYTE = 1, 4, 6
_KINDS: dict[int, Literal["Unigram", "BPE"]] = {1: "Unigram", 2: "BPE"}


@dataclass(frozen=True)
class PieceModel:
    """Pieces and settings of a SentencePiece model."""

    kind: Literal["Unigram", "BPE"]
    pieces: list[tuple[str, float]]
    """Pieces of texts and their scores, in the order of SentencePiece's ids, without control pieces
    and the unknown piece."""
    charsmap: bytes
    """Normalisation table; empty for none."""
    add_dummy_prefix: bool
    """Whether texts are read with a space before them."""
    remove_extra_whitespaces: bool
    """Whether spaces at the ends and repeated spaces between words are removed."""


def read_piece_model(path: Path) -> PieceModel:
    """Read a model file such as `source.spm`.

    Raises:
        CheckpointError: the file is not a model, or its kind of segmentation is not supported.

    """
    message = _message_class()()
    try:
        message.ParseFromString(path.read_bytes())
    except Exception as error:  # DecodeError is not part of the library's public interface
        raise CheckpointError(f"{path} is not a SentencePiece model: {error}") from None
    pieces = [(piece.piece, piece.score) for piece in message.pieces if piece.type == _NORMAL]
    trainer, normalizer = message.trainer, message.normalizer
    types = {piece.type for piece in message.pieces}
    unsupported = {
        "no pieces": not pieces,
        "words or characters as its pieces": trainer.model_type not in _KINDS,
        "user-defined pieces": _USER_DEFINED in types,
        "bytes as pieces": trainer.byte_fallback or _BYTE in types,
        "spaces at the ends of words": trainer.treat_whitespace_as_suffix,
        "spaces as they are": not normalizer.escape_whitespaces,
    }
    for feature, present in unsupported.items():
        if present:
            raise CheckpointError(f"{path} is a SentencePiece model with {feature}: not supported")
    return PieceModel(
        _KINDS[trainer.model_type],
        pieces,
        normalizer.precompiled_charsmap,
        normalizer.add_dummy_prefix,
        normalizer.remove_extra_whitespaces,
    )


@functools.cache
def _message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto2"
    )
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, *default) in fields.items():
            described = message.field.add(name=field, number=number)
            described.label = described.LABEL_REPEATED if field == "pieces" else 1
            if kind in _FIELDS:
                described.type, described.type_name = described.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                described.type = getattr(described, f"TYPE_{kind.upper()}")
            if default:
                described.default_value = default[0]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Model"))
