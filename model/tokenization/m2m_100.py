"""M2M-100's tokenizer: the first token of a text is its language.

Fan et al. 2020, https://arxiv.org/abs/2010.11125.
"""

from __future__ import annotations

from tokenizers import Tokenizer

from model.errors import CheckpointError
from model.tokenization.files import Side, TokenizerFiles
from model.tokenization.piece_tokenizer import (
    DeclaredTokens,
    piece_tokenizer,
    read_piece_model,
    vocabulary_of,
)
from model.tokenization.templates import Numbered, around, numbered

_LANGUAGES = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga "
    "gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
    "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn "
    "tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
"""Languages by `language_codes`, in the order of their ids, which follow the vocabulary's."""
DEFAULTS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
}


def m2m_100(files: TokenizerFiles, side: Side) -> tuple[Tokenizer, DeclaredTokens]:
    """Build the tokenizer of a side."""
    files.require_all(("vocab.json", "sentencepiece.bpe.model"))
    declared = DeclaredTokens.read(files, DEFAULTS)
    vocabulary = vocabulary_of(files.folder, declared)
    languages = _languages(files, len(declared.ids))
    ids = dict(languages.values()) | dict(vocabulary.ids)
    model = read_piece_model(files.folder / "sentencepiece.bpe.model")
    tokenizer = piece_tokenizer(model, vocabulary.with_ids(ids))
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
