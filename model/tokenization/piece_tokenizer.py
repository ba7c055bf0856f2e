"""Tokenizer of a SentencePiece model whose tokens have the ids of another vocabulary.

The ids are those of a `vocab.json`. Three kinds of token get special treatment, so that texts are
segmented exactly as by SentencePiece:

- a token of the vocabulary that is not a piece is spelt with a space before it; no normalised text
  contains a space, so no text is segmented into it;
- a piece that the vocabulary lacks has an id after all of the vocabulary's, after a token `BEYOND`
  (`model.tokenization.vocabulary`), and readers of the tokens replace it by the unknown token;
- a special token that appears inside a text only after normalisation is split in two.

Format of the model: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from transformers import PreTrainedTokenizer
from transformers.convert_slow_tokenizer import import_protobuf

from model.errors import CheckpointError
from model.tokenization.files import TokenizerFiles, read_json
from model.tokenization.pretrained import from_files
from model.tokenization.vocabulary import BEYOND

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


_MOST_IDS = 2**24
"""Limit of ids, above any real vocabulary, because rows up to the largest id are allocated."""


class DeclaredTokens(PreTrainedTokenizer):  # type: ignore[misc]
    """Special and added tokens of a checkpoint with a vocab.json, by transformers' own rules."""

    vocab_files_names: ClassVar[dict[str, str]] = {"vocab_file": "vocab.json"}

    def __init__(self, vocab_file: str, **settings: Any) -> None:
        self.ids = read_ids(Path(vocab_file))
        self.given: dict[int, AddedToken] = dict(settings.get("added_tokens_decoder", {}))
        super().__init__(**settings)

    @classmethod
    def read(cls, files: TokenizerFiles, defaults: Mapping[str, str]) -> Self:
        """Read the tokens; special tokens that the files do not name have defaults."""
        by_id = {index: token for token, index in read_ids(files.folder / "vocab.json").items()}
        declared = from_files(cls, files, defaults)
        for index, token in declared.given.items():
            known = by_id.get(index, token.content)
            if known != token.content and known in declared.all_special_tokens:
                raise CheckpointError(
                    f"{files.folder}: tokenizer_config.json gives {token.content} the id {index}, "
                    f"which vocab.json gives {known}"
                )
        return declared

    @property
    def vocab_size(self) -> int:
        """Number of ids without added tokens."""
        return len(self.ids)

    def get_vocab(self) -> dict[str, int]:
        """Return all ids."""
        return {**self.ids, **self.added_tokens_encoder}


@dataclass(frozen=True)
class Vocabulary:
    """Ids of tokens, and the tokens that are not pieces."""

    ids: Mapping[str, int]
    """Ids of all tokens."""
    unknown: str
    """Token for unknown text."""
    added: Sequence[AddedToken]
    """Tokens that are matched as a whole anywhere in a text."""
    codes: Collection[str] | None = None
    """Known codes such as `>>fra<<`, which are tokens only at the start of a text; there, any other
    text up to the first `<<` is the unknown token. None if the class has no codes."""

    @property
    def whole(self) -> set[str]:
        """Tokens of texts that are not pieces."""
        return {self.unknown, *(token.content for token in self.added), *(self.codes or ())}


def read_ids(path: Path) -> dict[str, int]:
    """Read the ids of a file such as `vocab.json`."""
    ids = read_json(path)
    if not all(isinstance(index, int) and 0 <= index < _MOST_IDS for index in ids.values()):
        raise CheckpointError(f"{path} does not hold ids of tokens")
    if len(set(ids.values())) < len(ids):
        raise CheckpointError(f"{path} gives two tokens one id")
    return ids


def vocabulary_of(folder: Path, declared: DeclaredTokens) -> Vocabulary:
    """Return a vocabulary with a checkpoint's added and special tokens.

    They are matched in the text before normalisation.
    """
    unknown = str(declared.unk_token)
    if unknown not in declared.ids:
        raise CheckpointError(
            f"{folder}: the tokenizer's vocabulary lacks {unknown}, its unknown token"
        )
    special = set(declared.all_special_tokens)
    tokens = declared.added_tokens_decoder
    added = [as_given(token, special=token.content in special) for token in tokens.values()]
    ids = declared.ids | {token.content: index for index, token in tokens.items()}
    return Vocabulary(ids, unknown, added)


def as_given(token: AddedToken, *, special: bool) -> AddedToken:
    """Return an added token that is matched in the text before normalisation."""
    return AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=False,
        special=token.special or special,
    )


_JOINER = "\u034f"
_WRITTEN_FIRST = {
    "\u0651": "\u064b-\u0650\u0670",
    "\u05bc": "\u05b0-\u05bb",
    "\u05c1": "\u05b0-\u05bc",
    "\u05c2": "\u05b0-\u05bc",
}
"""Shadda, dagesh and the dots of shin, and the vowels that canonical order puts before each."""


def piece_tokenizer(model: PieceModel, vocabulary: Vocabulary) -> Tokenizer:
    """Build the tokenizer without its template."""
    pieces = dict(model.pieces)
    tokenizer = Tokenizer(_model(model, _entries(pieces, vocabulary), vocabulary))
    tokenizer.normalizer = normalizers.Sequence(list(_normalizers(model, vocabulary)))
    splits = [_inner(vocabulary)]
    if vocabulary.codes is not None:
        splits.insert(0, rf"\A(?:{re.escape(vocabulary.unknown)}|>>(?m:.*?)<<)")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splits]
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace(" ", ""), decoders.Metaspace()])
    tokenizer.add_tokens(list(vocabulary.added))
    return tokenizer


def _entries(pieces: Mapping[str, float], vocabulary: Vocabulary) -> list[tuple[str, float]]:
    """Return every token in its spelling, with its score, by id.

    Tokens that are not pieces score 0, because the lowest score determines the cost of an unknown
    character.
    """
    size = max(vocabulary.ids.values()) + 1
    whole = vocabulary.whole
    entries = [(f" {index}", 0.0) for index in range(size)]
    for token, index in vocabulary.ids.items():
        spelt = token if token in pieces or token in whole else f" {token}"
        entries[index] = (spelt, pieces.get(token, 0.0))
    lacking = [piece for piece in pieces if piece not in vocabulary.ids]
    if lacking:
        entries += [(BEYOND, 0.0), *((piece, pieces[piece]) for piece in lacking)]
    return entries


def _model(
    model: PieceModel, entries: list[tuple[str, float]], vocabulary: Vocabulary
) -> models.Model:
    if model.kind == "Unigram":
        return models.Unigram(entries, vocabulary.ids[vocabulary.unknown], byte_fallback=False)
    ids = {token: index for index, (token, _) in enumerate(entries)}
    merges = list(_merges(dict(model.pieces)))
    return models.BPE(ids, merges, unk_token=vocabulary.unknown, fuse_unk=True)


def _merges(pieces: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yield pairs of pieces that make up a piece, in descending likelihood of the piece."""
    for piece in sorted(pieces, key=pieces.__getitem__, reverse=True):
        for cut in range(1, len(piece)):
            if piece[:cut] in pieces and piece[cut:] in pieces:
                yield piece[:cut], piece[cut:]


def _normalizers(model: PieceModel, vocabulary: Vocabulary) -> Iterator[Normalizer]:
    """Yield SentencePiece's steps: leading space, table, removal of spaces, marking of spaces."""

    def replace(pattern: str, content: str) -> Normalizer:
        return normalizers.Replace(Regex(pattern), content)

    if model.add_dummy_prefix:
        yield normalizers.Prepend(" ")
    if vocabulary.codes is not None:
        known = "|".join(re.escape(code[2:-2]) for code in vocabulary.codes) or "(?!)"
        yield replace(rf"\A >>(?!(?:{known})<<)(?m:.*?)<<", f"{vocabulary.unknown} ")
        yield replace(r"\A >>(?m:.*?)<\K<", "< ")
        yield replace(r"\A (?=>>(?m:.*?)<<)", "")
    if model.charsmap:
        table = normalizers.Precompiled(model.charsmap)
        if table.normalize_str("e\u0301") == "é":
            yield from _composed()
        if not model.remove_extra_whitespaces:
            yield normalizers.Replace("\r\n", "\n\n")
        yield table
    if model.remove_extra_whitespaces:
        yield replace(" {2,}", " ")
        yield replace(r"[ ▁]+\z", "")
        if not model.add_dummy_prefix:
            yield replace(r"\A +", "")
    yield normalizers.Replace(" ", "▁")


def _composed() -> Iterator[Normalizer]:
    """Yield steps that compose letters with their marks, as SentencePiece's table does.

    The library looks up graphemes in the table, but only short ones as a whole, so longer ones must
    be composed before. SentencePiece keeps the order of marks. Unicode's composition would move
    Arabic and Hebrew vowels before marks that are written first, but not across a joiner.
    """
    for mark, vowels in _WRITTEN_FIRST.items():
        yield normalizers.Replace(Regex(f"{mark}(?=[{vowels}])"), mark + _JOINER)
    yield normalizers.NFC()
    yield normalizers.Replace(Regex(f"(?<=[{''.join(_WRITTEN_FIRST)}]){_JOINER}"), "")


def _inner(vocabulary: Vocabulary) -> str:
    """Return a pattern of the position before a whole token's last character, inside a text."""
    tokens = sorted(token for token in vocabulary.whole if len(token) > 1)
    inner = (rf"{re.escape(token[:-1])}\K(?={re.escape(token[-1])})" for token in tokens)
    return rf"(?m:.)(?:{'|'.join(inner)})"
