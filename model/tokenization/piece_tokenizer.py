"""A SentencePiece model whose tokens have the ids of another vocabulary, as one `Tokenizer`.

Ids are those of a `vocab.json`. Three kinds of token keep the cuts SentencePiece's own:

- a token of the vocabulary that is no piece is spelt with a space before it, which no normalised
  text has, so that no text is cut into it;
- a piece that the vocabulary lacks has an id after all of the vocabulary's, after a token `BEYOND`
  (`model.tokenization.vocabulary`): what reads the tokens takes it as the unknown one;
- a special token in the middle of a text that is spelt out only after normalisation is cut in two.
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
"""Shadda, dagesh and the dots of shin, and the vowels whose canonical place is before each."""


def piece_tokenizer(model: PieceModel, vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer without its template."""
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
    """Every token as it is spelt and its score, by id.

    Scores of what is no piece are 0, as the least of all decides what an unknown character costs.
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
    """Pairs that make up a piece, those of the likeliest first."""
    for piece in sorted(pieces, key=pieces.__getitem__, reverse=True):
        for cut in range(1, len(piece)):
            if piece[:cut] in pieces and piece[cut:] in pieces:
                yield piece[:cut], piece[cut:]


def _normalizers(model: PieceModel, vocabulary: Vocabulary) -> Iterator[Normalizer]:
    """SentencePiece's steps: a space before the text, its table, spaces dropped, then marked."""

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
    """Letters and their marks as one character, as SentencePiece's table makes them.

    The library looks a table up by graphemes, of which it takes those of few bytes whole: what is
    longer has to be composed before. SentencePiece leaves the order of marks as it is; Unicode's
    composition would move the vowels of Arabic and Hebrew before the marks that are written first,
    but not across a joiner.
    """
    for mark, vowels in _WRITTEN_FIRST.items():
        yield normalizers.Replace(Regex(f"{mark}(?=[{vowels}])"), mark + _JOINER)
    yield normalizers.NFC()
    yield normalizers.Replace(Regex(f"(?<=[{''.join(_WRITTEN_FIRST)}]){_JOINER}"), "")


def _inner(vocabulary: Vocabulary) -> str:
    """A pattern of the place before a whole token's last character, not at the text's start."""
    tokens = sorted(token for token in vocabulary.whole if len(token) > 1)
    inner = (rf"{re.escape(token[:-1])}\K(?={re.escape(token[-1])})" for token in tokens)
    return rf"(?m:.)(?:{'|'.join(inner)})"
