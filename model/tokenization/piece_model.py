"""Model files of SentencePiece.

Format: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transformers.convert_slow_tokenizer import import_protobuf

from model.errors import CheckpointError

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


def piece_ids(path: Path) -> dict[str, int]:
    """Return SentencePiece's id of each piece, control pieces and the unknown piece included."""
    return {piece.piece: index for index, piece in enumerate(_message(path).pieces)}


def _message(path: Path) -> Any:
    message = import_protobuf().ModelProto()
    try:
        message.ParseFromString(path.read_bytes())
    except Exception as error:  # DecodeError is not part of the library's public interface
        raise CheckpointError(f"{path} is not a SentencePiece model: {error}") from None
    return message


def read_piece_model(path: Path) -> PieceModel:
    """Read a model file such as `source.spm`."""
    message = _message(path)
    pieces = [(piece.piece, piece.score) for piece in message.pieces if piece.type == _NORMAL]
    trainer, normalizer = message.trainer_spec, message.normalizer_spec
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
