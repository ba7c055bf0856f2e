"""Tokenizers of XLM-RoBERTa, CamemBERT, ALBERT, DeBERTa-v2 and T5.

Unigram: Kudo 2018, https://arxiv.org/abs/1804.10959, as SentencePiece trains it.
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.processors import TemplateProcessing

from model.tokenization.files import Settings
from model.tokenization.source import Source, TokenizerClass
from model.tokenization.templates import as_one_segment, as_segments, numbered

_QUOTES = (("``", '"'), ("''", '"'))


def _xlm_roberta(source: Source) -> Tokenizer:
    return _of_words(source, unknown=3)


def _camembert(source: Source) -> Tokenizer:
    pieces = [piece for piece, _ in source.pieces]
    name = source.name("unk_token")
    return _of_words(source, unknown=pieces.index(name) if name in pieces else 0)


def _of_words(source: Source, unknown: int) -> Tokenizer:
    """Return a tokenizer with the checkpoint's SentencePiece normalisation."""
    tokenizer = Tokenizer(models.Unigram(source.pieces, unknown, byte_fallback=False))
    if source.charsmap is not None:
        tokenizer.normalizer = normalizers.Precompiled(source.charsmap)
    _split_words(tokenizer, source)
    return tokenizer


def _split_words(tokenizer: Tokenizer, source: Source) -> None:
    scheme = "always" if source.flags.get("add_prefix_space", True) else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme=scheme)]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)


def _complete_words(tokenizer: Tokenizer, source: Source) -> None:
    bos = numbered(tokenizer, source, "bos_token")
    tokenizer.post_processor = as_one_segment(bos, numbered(tokenizer, source, "eos_token"))


def _albert(source: Source) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram(source.pieces, 1, byte_fallback=False))
    steps: list[Normalizer] = [normalizers.Replace(*quotes) for quotes in _QUOTES]
    if not source.flags.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if source.flags.get("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    if source.charsmap is not None:
        steps.append(normalizers.Precompiled(source.charsmap))
    tokenizer.normalizer = normalizers.Sequence(steps)
    _split_words(tokenizer, source)
    # always named so, and replaced by the file's own post-processor if there is one
    tokenizer.post_processor = as_segments(
        ("[CLS]", numbered(tokenizer, source, "cls_token")[1]),
        ("[SEP]", numbered(tokenizer, source, "sep_token")[1]),
    )
    return tokenizer


def _deberta_v2(source: Source) -> Tokenizer:
    unknown = (source.name("unk_token"), 0.0)
    index = source.flags.get("unk_id", 1)
    pieces = source.pieces
    if unknown in pieces:
        index = pieces.index(unknown)
    tokenizer = Tokenizer(models.Unigram(pieces, index, byte_fallback=False))
    steps: list[Normalizer] = []
    if source.flags.get("do_lower_case", False):
        steps.append(normalizers.Lowercase())
    steps += [
        normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "),
        normalizers.NFC(),
        normalizers.Strip(left=False, right=True),
    ]
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if source.flags.get("add_prefix_space", True) else "first"
    splits: list[PreTokenizer] = []
    if source.flags.get("split_by_punct", False):
        splits.append(pre_tokenizers.Punctuation(behavior="isolated"))
    splits.append(pre_tokenizers.Metaspace(prepend_scheme=scheme))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return tokenizer


def _complete_deberta_v2(tokenizer: Tokenizer, source: Source) -> None:
    cls = numbered(tokenizer, source, "cls_token", 0)
    tokenizer.post_processor = as_segments(cls, numbered(tokenizer, source, "sep_token", 0))


def _t5(source: Source) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram(source.pieces, 2, byte_fallback=False))
    if source.charsmap is not None:
        tokenizer.normalizer = normalizers.Precompiled(source.charsmap)
    split_spaced_words(tokenizer)
    return tokenizer


def split_spaced_words(tokenizer: Tokenizer) -> None:
    """Make a tokenizer read every word with a space before it."""
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.decoder = decoders.Metaspace()


def _complete_t5(tokenizer: Tokenizer, source: Source) -> None:
    # always named so
    end = ("</s>", numbered(tokenizer, source, "eos_token")[1])
    tokenizer.post_processor = TemplateProcessing(
        single=["$A", end[0]], pair=["$A", end[0], "$B", end[0]], special_tokens=[end]
    )


def _sentinels(flags: Settings) -> list[str]:
    return [f"<extra_id_{index}>" for index in range(flags.get("extra_ids", 100))]


def _camemberts_unused(_: Settings) -> tuple[str, ...]:
    return ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")


ROBERTAS_NAMES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
XLM_ROBERTA = TokenizerClass(
    kind="Unigram", build=_xlm_roberta, complete=_complete_words, named=ROBERTAS_NAMES
)
CAMEMBERT = TokenizerClass(
    kind="Unigram",
    build=_camembert,
    complete=_complete_words,
    named=ROBERTAS_NAMES,
    as_added={"mask_token": {"lstrip": True, "special": True}},
    usual_extra=_camemberts_unused,
)
ALBERT = TokenizerClass(
    kind="Unigram",
    build=_albert,
    named={
        "bos_token": "[CLS]",
        "eos_token": "[SEP]",
        "unk_token": "<unk>",
        "sep_token": "[SEP]",
        "pad_token": "<pad>",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    },
)
DEBERTA_V2 = TokenizerClass(
    kind="Unigram",
    build=_deberta_v2,
    complete=_complete_deberta_v2,
    named={
        "bos_token": "[CLS]",
        "eos_token": "[SEP]",
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    },
    segments=True,
)
T5 = TokenizerClass(
    kind="Unigram",
    build=_t5,
    complete=_complete_t5,
    named={"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    usual_extra=_sentinels,
)
