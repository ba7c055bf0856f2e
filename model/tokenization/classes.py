"""Class of a checkpoint's tokenizer, determined as in transformers 5."""

from __future__ import annotations

from collections.abc import Mapping

from model.errors import CheckpointError
from model.tokenization.byte_pairs import GEMMA, QWEN2, ROBERTA
from model.tokenization.files import TokenizerFiles
from model.tokenization.marian import MARIAN
from model.tokenization.multilingual_bart import M2M_100, MBART, MBART_50
from model.tokenization.names import AS_STORED, BACKENDS, MODEL_TYPES, NOT_BUILT, OVERRULING
from model.tokenization.sentence_pieces import ALBERT, CAMEMBERT, DEBERTA_V2, T5, XLM_ROBERTA
from model.tokenization.source import TokenizerClass
from model.tokenization.word_pieces import BERT, DISTILBERT, MPNET

CLASSES: Mapping[str, TokenizerClass] = {
    "AlbertTokenizer": ALBERT,
    "BartTokenizer": ROBERTA,
    "BertTokenizer": BERT,
    "CamembertTokenizer": CAMEMBERT,
    "DebertaV2Tokenizer": DEBERTA_V2,
    "DistilBertTokenizer": DISTILBERT,
    "ElectraTokenizer": BERT,
    "GemmaTokenizer": GEMMA,
    "LEDTokenizer": ROBERTA,
    "LayoutLMTokenizer": BERT,
    "LongformerTokenizer": ROBERTA,
    "LxmertTokenizer": BERT,
    "M2M100Tokenizer": M2M_100,
    "MBart50Tokenizer": MBART_50,
    "MBartTokenizer": MBART,
    "MPNetTokenizer": MPNET,
    "MarianTokenizer": MARIAN,
    "MobileBertTokenizer": BERT,
    "MvpTokenizer": ROBERTA,
    "Qwen2Tokenizer": QWEN2,
    "RobertaTokenizer": ROBERTA,
    "SqueezeBertTokenizer": BERT,
    "T5Tokenizer": T5,
    "XLMRobertaTokenizer": XLM_ROBERTA,
}
"""Classes by transformers' names, without a final "Fast"."""


def find_class(files: TokenizerFiles) -> tuple[str, TokenizerClass | None]:
    """Return the class of a checkpoint's tokenizer, and its name; None for a bare tokenizer.json.

    Raises:
        CheckpointError: no class is named, it is the checkpoint's own code, or it is not supported.

    """
    declared = files.settings.get("tokenizer_class")
    named = declared or files.config.get("tokenizer_class")
    if named is not None and not isinstance(named, str):
        raise CheckpointError(f"{files.folder}: tokenizer_class is {named!r}, not a name")
    default = MODEL_TYPES.get(str(files.config.get("model_type")))
    overruling = not OVERRULING.isdisjoint(
        str(files.config.get(key)) for key in ("model_type", "model_name")
    )
    own_code = _names_own_code(files)
    if own_code and not default and (not declared or _is_unknown(declared)):
        raise CheckpointError(
            f"{files.folder} has a tokenizer that is code of its own (auto_map), which is not run; "
            "where its tokenizer.json is whole, set tokenizer_class to PreTrainedTokenizerFast in "
            "tokenizer_config.json"
        )
    if not own_code and named and default and _plain(named) != default:
        if default == AS_STORED:
            return default, None
        return _class(files, default if overruling else named)
    if not declared and named and _is_unknown(named):
        raise CheckpointError(
            f"{files.folder}: config.json names a tokenizer_class {named}, which transformers does "
            "not have; set it to PreTrainedTokenizerFast if tokenizer.json is whole"
        )
    if not (named or default):
        raise CheckpointError(
            f"{files.folder} names no tokenizer_class; set one in tokenizer_config.json "
            "(PreTrainedTokenizerFast takes tokenizer.json as it stands)"
        )
    return _class(files, str(named or default))


def _names_own_code(files: TokenizerFiles) -> bool:
    names = files.settings.get("auto_map")
    return bool(names.get("AutoTokenizer") if isinstance(names, dict) else names)


def _plain(name: str) -> str:
    return name.removesuffix("Fast")


def _is_unknown(name: str) -> bool:
    return _plain(name) not in CLASSES.keys() | BACKENDS | NOT_BUILT


def _class(files: TokenizerFiles, name: str) -> tuple[str, TokenizerClass | None]:
    if _plain(name) in NOT_BUILT:
        files.require(name)
        raise CheckpointError(
            f"{files.folder}: {name} is not supported; where its tokenizer.json is whole, "
            "set tokenizer_class to PreTrainedTokenizerFast in tokenizer_config.json"
        )
    return name, CLASSES.get(_plain(name))
