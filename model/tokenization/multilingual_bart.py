"""Tokenizers of mBART, mBART-50 and M2M-100: one token of a text is its language.

Liu et al. 2020, https://arxiv.org/abs/2001.08210; Tang et al. 2020, https://arxiv.org/abs/2008.00401;
Fan et al. 2020, https://arxiv.org/abs/2010.11125.
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.processors import TemplateProcessing

from model.errors import CheckpointError
from model.tokenization.files import Settings
from model.tokenization.piece_model import read_piece_model
from model.tokenization.piece_tokenizer import piece_tokenizer
from model.tokenization.piece_vocabulary import extended, read_ids
from model.tokenization.sentence_pieces import ROBERTAS_NAMES, split_spaced_words
from model.tokenization.source import Source, TokenizerClass
from model.tokenization.templates import Numbered, numbered

_MBART_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
    "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
_MBART_50_LANGUAGES = (
    f"{_MBART_LANGUAGES} af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN "
    "mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
_M2M_100_LANGUAGES = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga "
    "gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
    "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn "
    "tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
"""Languages by `language_codes`, in the order of their ids, which follow the vocabulary's."""


def _mbart(source: Source) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram(source.pieces, 3, byte_fallback=False))
    split_spaced_words(tokenizer)
    return tokenizer


def _mbart_50(source: Source) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram(source.pieces, 3, byte_fallback=False))
    steps: list[Normalizer] = []
    if source.charsmap is not None:
        steps.append(normalizers.Precompiled(source.charsmap))
    steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _complete_mbart(tokenizer: Tokenizer, source: Source) -> None:
    eos, language = numbered(tokenizer, source, "eos_token"), _language(tokenizer, source)
    tokenizer.post_processor = _template([], [eos, language])


def _complete_mbart_50(tokenizer: Tokenizer, source: Source) -> None:
    eos, language = numbered(tokenizer, source, "eos_token"), _language(tokenizer, source)
    tokenizer.post_processor = _template([language], [eos])


def _template(before: list[Numbered], after: list[Numbered]) -> TemplateProcessing:
    first, last = [token for token, _ in before], [token for token, _ in after]
    return TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", "$B", *last],
        special_tokens=[*before, *after],
    )


def _language(tokenizer: Tokenizer, source: Source) -> Numbered:
    """Return the language of a side's texts, by default English, or the source's for targets."""
    language = str(source.flags.get("src_lang") or "en_XX")
    if source.side == "target":
        language = str(source.flags.get("tgt_lang") or language)
    index = tokenizer.token_to_id(language)
    if index is None:
        raise CheckpointError(
            f"{source.files.folder}: the tokenizer's vocabulary lacks {language}, its language"
        )
    return language, index


def _m2m_100(source: Source) -> Tokenizer:
    folder = source.files.folder
    vocabulary = extended(source, read_ids(folder / "vocab.json"))
    ids = dict(vocabulary.ids)
    ids = {token: index for _, (token, index) in _m2m_100_languages(source).items()} | ids
    return piece_tokenizer(
        read_piece_model(folder / "sentencepiece.bpe.model"),
        vocabulary.with_ids(ids),
    )


def _complete_m2m_100(tokenizer: Tokenizer, source: Source) -> None:
    languages = _m2m_100_languages(source)
    name = "src_lang" if source.side == "source" else "tgt_lang"
    language = source.flags.get(name) or ("en" if source.side == "source" else None)
    if language not in languages:
        raise CheckpointError(
            f"{source.files.folder}: {name} of tokenizer_config.json is {language!r}; set it to a "
            f"language of the model: {', '.join(languages)}"
        )
    token, index = languages[str(language)]
    known = tokenizer.token_to_id(token)
    tokenizer.post_processor = _template(
        [(token, index if known is None else known)], [numbered(tokenizer, source, "eos_token")]
    )


def _m2m_100_languages(source: Source) -> dict[str, Numbered]:
    """Return each language's token and its id."""
    codes = source.flags.get("language_codes") or "m2m100"
    if codes not in _M2M_100_LANGUAGES:
        raise CheckpointError(
            f"{source.files.folder}: language_codes of tokenizer_config.json is {codes!r}; known "
            f"are {' and '.join(_M2M_100_LANGUAGES)}"
        )
    first = len(read_ids(source.files.folder / "vocab.json"))
    return {
        language: (f"__{language}__", first + index)
        for index, language in enumerate(_M2M_100_LANGUAGES[codes].split())
    }


def _mbart_codes(_: Settings) -> list[str]:
    return _MBART_LANGUAGES.split()


def _mbart_50_codes(_: Settings) -> list[str]:
    return _MBART_50_LANGUAGES.split()


MBART = TokenizerClass(
    kind="Unigram",
    build=_mbart,
    complete=_complete_mbart,
    named=ROBERTAS_NAMES,
    as_added={"mask_token": {"lstrip": True}},
    usual_extra=_mbart_codes,
    sided=True,
)
MBART_50 = TokenizerClass(
    kind="Unigram",
    build=_mbart_50,
    complete=_complete_mbart_50,
    named={name: token for name, token in ROBERTAS_NAMES.items() if name != "bos_token"},
    as_added={"mask_token": {"lstrip": True}},
    usual_extra=_mbart_50_codes,
    sided=True,
)
M2M_100 = TokenizerClass(
    kind="SentencePiece",
    build=_m2m_100,
    complete=_complete_m2m_100,
    named={
        "bos_token": "<s>",
        "eos_token": "</s>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
    },
    vocabulary_files=("vocab.json", "sentencepiece.bpe.model"),
    sided=True,
)
