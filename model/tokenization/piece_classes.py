"""Tokenizers of classes whose texts SentencePiece segments: Marian's, M2M-100's and SigLIP's."""

from __future__ import annotations

import string
from dataclasses import replace
from pathlib import Path

from tokenizers import Regex, Tokenizer, normalizers
from tokenizers.normalizers import Normalizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase

from model.errors import CheckpointError
from model.tokenization.files import Side, TokenizerFiles
from model.tokenization.piece_tokenizer import (
    DeclaredTokens,
    Vocabulary,
    as_given,
    piece_ids,
    piece_tokenizer,
    read_ids,
    read_piece_model,
    vocabulary_of,
)

Numbered = tuple[str, int]
"""Token and its id."""


def numbered(tokenizer: Tokenizer, folder: Path, name: str, token: str | None) -> Numbered:
    """Return a named special token and its id."""
    if token is None:
        raise CheckpointError(
            f"{folder}: the tokenizer's {name} is null; name one in tokenizer_config.json"
        )
    index = tokenizer.token_to_id(token)
    if index is None:
        raise CheckpointError(f"{folder}: the tokenizer's vocabulary lacks {token}, its {name}")
    return token, index


def around(before: list[Numbered], after: list[Numbered]) -> TemplateProcessing:
    """Return the template of tokens before and after a text, and around a pair."""
    first, last = [token for token, _ in before], [token for token, _ in after]
    return TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", "$B", *last],
        special_tokens=[*before, *after],
    )


_OF_MARIAN = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}


def marian(files: TokenizerFiles, side: Side) -> tuple[Tokenizer, DeclaredTokens]:
    """Build Marian's tokenizer of a side: SentencePiece models, with common or separate ids.

    Junczys-Dowmunt et al. 2018, https://arxiv.org/abs/1804.00344.
    """
    files.require_all(("source.spm", "target.spm", "vocab.json"))
    declared = DeclaredTokens.read(files, _OF_MARIAN)
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
    return replace(vocabulary, ids=ids)


_LANGUAGES = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga "
    "gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
    "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn "
    "tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
"""Languages by `language_codes`, in the order of their ids, which follow the vocabulary's."""
_OF_M2M_100 = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
}


def m2m_100(files: TokenizerFiles, side: Side) -> tuple[Tokenizer, DeclaredTokens]:
    """Build M2M-100's tokenizer of a side, whose texts begin with the token of their language.

    Fan et al. 2020, https://arxiv.org/abs/2010.11125.
    """
    files.require_all(("vocab.json", "sentencepiece.bpe.model"))
    declared = DeclaredTokens.read(files, _OF_M2M_100)
    vocabulary = vocabulary_of(files.folder, declared)
    languages = _languages(files, len(declared.ids))
    ids = dict(languages.values()) | dict(vocabulary.ids)
    model = read_piece_model(files.folder / "sentencepiece.bpe.model")
    tokenizer = piece_tokenizer(model, replace(vocabulary, ids=ids))
    name = "src_lang" if side == "source" else "tgt_lang"
    language = files.settings.get(name) or ("en" if side == "source" else None)
    if language not in languages:
        raise CheckpointError(
            f"{files.folder}: {name} of tokenizer_config.json is {language!r}; set it to a "
            f"language of the model: {', '.join(languages)}"
        )
    token, index = languages[str(language)]
    known = tokenizer.token_to_id(token)
    tokenizer.post_processor = around(
        [(token, index if known is None else known)],
        [numbered(tokenizer, files.folder, "eos_token", declared.eos_token)],
    )
    return tokenizer, declared


def _languages(files: TokenizerFiles, first: int) -> dict[str, Numbered]:
    """Return each language's token and its id, counted from the first."""
    codes = files.settings.get("language_codes") or "m2m100"
    if codes not in _LANGUAGES:
        raise CheckpointError(
            f"{files.folder}: language_codes of tokenizer_config.json is {codes!r}; known "
            f"are {' and '.join(_LANGUAGES)}"
        )
    return {
        language: (f"__{language}__", first + index)
        for index, language in enumerate(_LANGUAGES[codes].split())
    }


MODEL = "spiece.model"
_PUNCTUATION = "[" + "".join(rf"\x{ord(sign):02x}" for sign in string.punctuation) + "]"


def siglip(files: TokenizerFiles) -> tuple[Tokenizer, PreTrainedTokenizerBase]:
    """Build SigLIP's tokenizer, and transformers' own, which names its special tokens.

    transformers lower-cases a text, and removes ASCII punctuation and repeated spaces
    (`SiglipTokenizer.canonicalize_text`). Two rare texts differ from it: a capital sigma at the end
    of a word becomes σ, not ς; and text after a special token that a text spells out begins a new
    word.
    """
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
    added = [as_given(token, special=True) for token in pretrained.added_tokens_decoder.values()]
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
