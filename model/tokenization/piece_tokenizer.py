"""Tokenizer of a SentencePiece model whose tokens have the ids of another vocabulary.

The ids are those of a `vocab.json`. Three kinds of token get special treatment, so that texts are
segmented exactly as by SentencePiece:

- a token of the vocabulary that is not a piece is spelt with a space before it; no normalised text
  contains a space, so no text is segmented into it;
- a piece that the vocabulary lacks has an id after all of the vocabulary's, after a token `BEYOND`
  (`model.tokenization.vocabulary`), and readers of the tokens replace it by the unknown token;
- a special token that appears inside a text only after normalisation is split in two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer

from model.tokenization.piece_model import PieceModel
from model.tokenization.piece_vocabulary import Vocabulary
from model.tokenization.vocabulary import BEYOND

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
