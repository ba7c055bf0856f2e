"""SigLIP's tokenizer: a SentencePiece model over canonical texts, whose ids are SentencePiece's.

transformers lower-cases a text, and removes ASCII punctuation and repeated spaces
(`SiglipTokenizer.canonicalize_text`). Two rare texts differ from it: a capital sigma at the end of
a word becomes σ, not ς; and text after a special token that a text spells out begins a new word.
"""

from __future__ import annotations

import string
from dataclasses import replace

from tokenizers import AddedToken, Regex, Tokenizer, normalizers
from tokenizers.normalizers import Normalizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase

from model.errors import CheckpointError
from model.tokenization.files import TokenizerFiles
from model.tokenization.piece_tokenizer import (
    Vocabulary,
    piece_ids,
    piece_tokenizer,
    read_piece_model,
)
from model.tokenization.templates import numbered

MODEL = "spiece.model"
_PUNCTUATION = "[" + "".join(rf"\x{ord(sign):02x}" for sign in string.punctuation) + "]"


def siglip(files: TokenizerFiles) -> tuple[Tokenizer, PreTrainedTokenizerBase]:
    """Build the tokenizer, and transformers' own, which names its special tokens."""
    from transformers import SiglipTokenizer  # noqa: PLC0415 - needs SentencePiece itself

    files.require_all((MODEL,))
    path = files.folder / MODEL
    pretrained = SiglipTokenizer.from_pretrained(
        files.folder, local_files_only=True, trust_remote_code=False
    )
    model, ids = read_piece_model(path), piece_ids(path)
    table = normalizers.Precompiled(model.charsmap) if model.charsmap else None
    if not model.remove_extra_whitespaces or not table or table.normalize_str("▁") != " ":
        raise CheckpointError(f"{path} does not collapse spaces and ▁ to one space: not supported")
    unknown = str(pretrained.unk_token)
    if unknown not in ids:
        raise CheckpointError(
            f"{files.folder}: the tokenizer's vocabulary lacks {unknown}, its unknown token"
        )
    added = [
        AddedToken(
            token.content,
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=False,
            special=True,
        )
        for token in pretrained.added_tokens_decoder.values()
    ]
    numbers = {token.content: index for index, token in pretrained.added_tokens_decoder.items()}
    vocabulary = Vocabulary(ids | numbers, unknown, added)
    # transformers puts ▁ before a text, which the table reads as a space
    tokenizer = piece_tokenizer(replace(model, add_dummy_prefix=True), vocabulary)
    lowercase = bool(pretrained.do_lower_case)
    tokenizer.normalizer = normalizers.Sequence(
        [*_canonical(lowercase=lowercase), tokenizer.normalizer]
    )
    token, index = numbered(tokenizer, files.folder, "eos_token", pretrained.eos_token)
    tokenizer.post_processor = TemplateProcessing(
        single=["$A", token], pair=["$A", token, "$B", token], special_tokens=[(token, index)]
    )
    return tokenizer, pretrained


def _canonical(*, lowercase: bool) -> list[Normalizer]:
    """Return the steps of transformers before SentencePiece's own."""
    steps: list[Normalizer] = [normalizers.Replace("▁", " ")]
    if lowercase:
        steps.append(normalizers.Lowercase())
    steps += [
        normalizers.Replace(Regex(_PUNCTUATION), ""),
        normalizers.Replace(Regex(r"[\s\x1c-\x1f]+"), " "),
    ]
    return steps
