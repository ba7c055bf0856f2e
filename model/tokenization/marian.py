"""Marian's tokenizer: a SentencePiece model for each side, and common or separate ids.

Junczys-Dowmunt et al. 2018, https://arxiv.org/abs/1804.00344.
"""

from __future__ import annotations

from dataclasses import replace

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from model.errors import CheckpointError
from model.tokenization.piece_model import read_piece_model
from model.tokenization.piece_tokenizer import piece_tokenizer
from model.tokenization.piece_vocabulary import Vocabulary, extended, read_ids
from model.tokenization.source import Source, TokenizerClass
from model.tokenization.templates import numbered


def _marian(source: Source) -> Tokenizer:
    path = source.files.folder / f"{source.side}.spm"
    model = read_piece_model(path)
    if not model.add_dummy_prefix:
        raise CheckpointError(f"{path} reads texts without a space before them: not supported")
    vocabulary = extended(source, read_ids(source.files.folder / "vocab.json"))
    if source.side == "target" and source.flags.get("separate_vocabs"):
        vocabulary = _of_targets(source, vocabulary)
    codes = [token for token in vocabulary.ids if token.startswith(">>") and token.endswith("<<")]
    codes = [code for code in codes if code.find("<<") == len(code) - 2]
    return piece_tokenizer(model, replace(vocabulary, codes=codes))


def _of_targets(source: Source, vocabulary: Vocabulary) -> Vocabulary:
    """Return the targets' own ids; added tokens have the sources' ids, as in transformers."""
    path = source.files.folder / "target_vocab.json"
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


def _complete_marian(tokenizer: Tokenizer, source: Source) -> None:
    eos = numbered(tokenizer, source, "eos_token")
    tokenizer.post_processor = TemplateProcessing(
        single=["$A", eos[0]], pair=["$A", "$B", eos[0]], special_tokens=[eos]
    )


MARIAN = TokenizerClass(
    kind="SentencePiece",
    build=_marian,
    complete=_complete_marian,
    named={"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"},
    vocabulary_files=("source.spm", "target.spm", "vocab.json"),
    sided=True,
)
