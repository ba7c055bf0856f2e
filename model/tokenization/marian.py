"""Marian's tokenizer: a SentencePiece model for each side, and common or separate ids.

Junczys-Dowmunt et al. 2018, https://arxiv.org/abs/1804.00344.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from model.errors import CheckpointError
from model.tokenization.files import Side, TokenizerFiles
from model.tokenization.piece_tokenizer import (
    DeclaredTokens,
    Vocabulary,
    piece_tokenizer,
    read_ids,
    read_piece_model,
    vocabulary_of,
)
from model.tokenization.templates import around, numbered

DEFAULTS = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}


def marian(files: TokenizerFiles, side: Side) -> tuple[Tokenizer, DeclaredTokens]:
    """Build the tokenizer of a side."""
    files.require_all(("source.spm", "target.spm", "vocab.json"))
    declared = DeclaredTokens.read(files, DEFAULTS)
    path = files.folder / f"{side}.spm"
    model = read_piece_model(path)
    if not model.add_dummy_prefix:
        raise CheckpointError(f"{path} reads texts without a space before them: not supported")
    vocabulary = vocabulary_of(files.folder, declared)
    if side == "target" and files.settings.get("separate_vocabs"):
        vocabulary = _of_targets(files.folder, vocabulary)
    codes = [token for token in vocabulary.ids if token.startswith(">>") and token.endswith("<<")]
    codes = [code for code in codes if code.find("<<") == len(code) - 2]
    tokenizer = piece_tokenizer(model, replace(vocabulary, codes=codes))
    eos = numbered(tokenizer, files.folder, "eos_token", declared.eos_token)
    tokenizer.post_processor = around([], [eos])
    return tokenizer, declared


def _of_targets(folder: Path, vocabulary: Vocabulary) -> Vocabulary:
    """Return the targets' own ids; added tokens have the sources' ids, as in transformers."""
    path = folder / "target_vocab.json"
    if not path.is_file():
        raise CheckpointError(f"{path} is missing, the targets' vocabulary (separate_vocabs)")
    ids = read_ids(path)
    for token in vocabulary.added:
        index = vocabulary.ids[token.content]
        if ids.setdefault(token.content, index) != index:
            raise CheckpointError(
                f"{path} has another id for {token.content} than vocab.json: not supported"
            )
    if len(set(ids.values())) < len(ids):
        raise CheckpointError(f"{path} lacks special tokens, and other tokens have their ids")
    return vocabulary.with_ids(ids)
