"""Kind of a checkpoint's task head, and the settings of its files. Without torch.

Formats of task heads: the `architectures` of transformers' `config.json`, and the modules and the
`transformer_task` of sentence-transformers' cross-encoders and sparse encoders.

Formats of rerankers by logits: sentence-transformers' cross-encoder of the modules Transformer →
LogitScore, such as Qwen3-Reranker (Zhang et al. 2025, https://arxiv.org/abs/2506.05176). A score is
the logit of the word for true at the text's last token, minus the logit of the word for false if
there is one.

Formats of late-interaction models, with their meaning in sentence-transformers 6.2:

* sentence-transformers' MultiVectorEncoder: Transformer, then Dense and Normalize over tokens and a
  MultiVectorMask; lengths and query expansion in `sentence_bert_config.json`;
* PyLate, up to version 3: Transformer, then Dense; prefixes, lengths, expansion and skiplist in
  `config_sentence_transformers.json`; mask and normalisation are implied;
* Stanford's ColBERT (Santhanam et al. 2022, https://arxiv.org/abs/2112.01488): a checkpoint of the
  architecture HF_ColBERT with `linear.weight`, and `artifact.metadata`.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt

from model.config.encoder import Part
from model.config.files import naming, read_object
from model.errors import ConfigError
from model.numerics.late_interaction import ROLES, Role, TokenModule
from model.numerics.task_head import TaskKind
from model.numerics.vector_modules import Dense, Normalize
from model.sources.files import (
    CHAT_TEMPLATE,
    HYBRID_HEADS,
    METADATA,
    MODULES,
    SETTINGS,
    ModuleEntry,
    architectures,
    listed_modules,
    transformer_folder,
)
from model.sources.sentence_files import (
    MODEL_KEYS,
    Fields,
    read_dense,
    read_one_of,
    read_prompts,
    read_transformer,
    refuse_unknown,
)

WITH_TEACHER = "WithTeacher"
"""Ending of the architecture of DeiT with two classifiers."""
_ARCHITECTURES: dict[str, TaskKind] = {
    "ForSequenceClassification": "sequence_classification",
    "ForTokenClassification": "token_classification",
    "ForImageClassification": "sequence_classification",
    f"ForImageClassification{WITH_TEACHER}": "sequence_classification",
}
_TRANSFORMER_TASKS: dict[str, TaskKind] = {
    "sequence-classification": "sequence_classification",
    "fill-mask": "sparse",
}


def task_kind(folder: Path) -> TaskKind | None:
    """Return the kind of task head to serve; None if the checkpoint only gives vectors.

    bge-m3 is recognised by its linear maps, which `modules.json` does not list. Otherwise a
    `modules.json` takes precedence: a classifier or a masked language model that
    sentence-transformers pools to vectors only gives vectors.
    """
    if is_late_interaction(folder):
        return "late_interaction"
    if any((folder / name).is_file() for name in HYBRID_HEADS):
        return "hybrid"
    modules = listed_modules(folder)
    if modules is not None:
        return _by_modules(folder, modules)
    kinds = (
        kind
        for name in architectures(folder)
        for ending, kind in _ARCHITECTURES.items()
        if name.endswith(ending)
    )
    return next(kinds, None)


def sparse_pooling(folder: Path) -> dict[str, Any]:
    """Return `pooling` and `activation` of a sparse encoder, from its SpladePooling's config."""
    entry = next(m for m in listed_modules(folder) or () if m.kind == "SpladePooling")
    path = entry.folder / "config.json"
    config = read_object(path)
    activations = ("relu", "log1p_relu")
    return {
        "pooling": read_one_of(path, config, "pooling_strategy", ("max", "sum"), "max"),
        "activation": read_one_of(path, config, "activation_function", activations, "relu"),
    }


def _by_modules(folder: Path, modules: list[ModuleEntry]) -> TaskKind | None:
    kinds = [module.kind for module in modules]
    settings = transformer_folder(folder) / "sentence_bert_config.json"
    named = read_object(settings).get("transformer_task")
    if kinds[:1] == ["MLMTransformer"]:
        named = named or "fill-mask"
    kind = _TRANSFORMER_TASKS.get(str(named))
    if is_logit_score(modules):
        return "sequence_classification"
    expected = {"sequence_classification": 1, "sparse": 2}
    if kind is None or len(kinds) != expected[kind]:
        return None
    return None if kind == "sparse" and kinds[1] != "SpladePooling" else kind


LOGIT_SCORE = "LogitScore"
_MESSAGES = "message"
_INPUT = "causal_logits"

MessageFormat = Literal["flat", "structured"]
"""Content of a message of the chat template: a string, or a list of typed parts."""


class LogitScore(BaseModel):
    """Words of a reranker's score, and the form of its chat template's messages."""

    model_config = ConfigDict(frozen=True)

    true_token_id: NonNegativeInt
    false_token_id: NonNegativeInt | None = None
    """Token id of the word for false; None if the score is the logit of the word for true."""
    chat_template: str | None = None
    """Chat template around each pair; None if the tokenizer joins both texts."""
    message_format: MessageFormat = "flat"


def is_logit_score(modules: list[ModuleEntry]) -> bool:
    """Return whether the modules score pairs by logits of words."""
    return [module.kind for module in modules] == ["Transformer", LOGIT_SCORE]


def read_logit_score(folder: Path) -> LogitScore | None:
    """Read the files of a reranker by logits; None for any other checkpoint."""
    modules = listed_modules(folder)
    if modules is None or not is_logit_score(modules):
        return None
    content = read_object(path := modules[1].folder / "config.json")
    refuse_unknown(path, content, {*LogitScore.model_fields, "module_input_name"})
    read_one_of(path, content, "module_input_name", (_INPUT,), _INPUT)
    words = {key: content.get(key) for key in ("true_token_id", "false_token_id")}
    with naming(path):
        return LogitScore(**words, **_chat(transformer_folder(folder)))


def _chat(folder: Path) -> dict[str, Any]:
    """Return the chat template and the form of its messages, if the model reads messages."""
    content = read_object(path := folder / "sentence_bert_config.json")
    modalities = content.get("modality_config")
    if modalities is None:
        return {"chat_template": _chat_template(folder)}
    if not isinstance(modalities, dict):
        raise ConfigError(f"{path}: modality_config is not a JSON object")
    if _MESSAGES not in modalities:
        return {}
    template = _chat_template(folder)
    if template is None:
        raise ConfigError(f"{path} names messages, and {folder} holds no {CHAT_TEMPLATE}")
    settings = modalities[_MESSAGES]
    form = settings.get("format", "flat") if isinstance(settings, dict) else settings
    return {"chat_template": template, "message_format": form}


def _chat_template(folder: Path) -> str | None:
    """Return the default chat template of a tokenizer's files; None without one."""
    if (path := folder / CHAT_TEMPLATE).is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} is not readable text: {error}") from None
    path = folder / "tokenizer_config.json"
    stored = read_object(path).get("chat_template")
    if stored is None or isinstance(stored, str):
        return stored
    raise ConfigError(f"{path}: several chat templates are not supported; {CHAT_TEMPLATE} is")


PYLATE_DENSE = "pylate.models.Dense.Dense"
_STANFORD = "HF_ColBERT"
_TOKENS = "token_embeddings"
_PREFIXES = {"query": "query_prefix", "document": "document_prefix"}
_PYLATE_KEYS = {
    *_PREFIXES.values(),
    "attend_to_expansion_tokens",
    "attend_to_mask_tokens",
    "do_query_expansion",
    "document_length",
    "query_expansion",
    "query_length",
    "skiplist_words",
}
_ROLE_KEYS = {"document_length", "query_expansion", "query_length"}
_USUAL_LENGTH = 32
"""Default number of query tokens, if the files give none."""


class Expansion(Part):
    """Query expansion, as the key `query_expansion` of sentence-transformers describes it."""

    strategy: Literal["fixed", "min"]
    length: PositiveInt
    attend: bool = False
    token: str | None = None
    """Expansion token; the tokenizer's mask token when None."""


class LateFiles(Part):
    """Settings of the files, with tokens still as words."""

    modules: tuple[TokenModule, ...]
    prompts: dict[str, str]
    """Prompts by name; both roles are always present."""
    default_prompt_name: str | None = None
    markers: tuple[str, ...] = ()
    """Prompts whose first token becomes a single token of the text."""
    query_length: PositiveInt | None = None
    document_length: PositiveInt | None = None
    expansion: Expansion | None = None
    skipped: tuple[str, ...] = ()
    """Words whose tokens get no vector."""
    skipped_in: tuple[Role, ...] = ("document",)
    similarity_fn_name: Literal["maxsim", "meanmaxsim"] = "maxsim"
    limits: tuple[Any, ...] = ()
    """Limits on the number of tokens of any text."""
    lowercase: bool = False


def is_late_interaction(folder: Path) -> bool:
    """Return whether a folder holds a late-interaction model (a vector per token, MaxSim)."""
    modules = listed_modules(folder)
    if modules is None:
        return _STANFORD in architectures(folder)
    settings = read_object(folder / SETTINGS)
    if settings.get("model_type") not in (None, "SentenceTransformer"):
        return settings["model_type"] in ("MultiVectorEncoder", "ColBERT")
    kinds = [module.kind for module in modules]
    late = any(kind.startswith("pylate.") or kind == "MultiVectorMask" for kind in kinds)
    return late or any(key in settings for key in _PREFIXES.values())


def read_late_files(folder: Path) -> LateFiles:
    """Read the files of a late-interaction model."""
    modules = listed_modules(folder)
    with naming(f"{folder}: invalid files of a late-interaction model"):
        if modules is None:
            return LateFiles(**_stanford(folder))
        settings = read_object(folder / SETTINGS)
        if settings.get("model_type") == "MultiVectorEncoder":
            return LateFiles(**_sentence_transformers(folder, modules, settings))
        return LateFiles(**_pylate(folder, modules, settings))


def _sentence_transformers(folder: Path, modules: list[ModuleEntry], settings: Fields) -> Fields:
    path = folder / SETTINGS
    refuse_unknown(path, settings, MODEL_KEYS)
    others = [module for module in modules if module.kind != "MultiVectorMask"]
    masks = [module for module in modules if module.kind == "MultiVectorMask"]
    _check_kinds(folder, modules, {"Dense", "Normalize", "MultiVectorMask"}, masks=1)
    inside = transformer_folder(folder)
    limits, lowercase = read_transformer(inside, also=_ROLE_KEYS)
    of_roles = read_object(inside / "sentence_bert_config.json")
    mask = read_object(mask_path := masks[0].folder / "config.json")
    refuse_unknown(mask_path, mask, {"skiplist_words", "skiplist_tasks"})
    tasks = mask.get("skiplist_tasks") or ["document"]
    return {
        "modules": [_token_module(entry) for entry in others[1:]],
        **_prompts(path, settings),
        **{key: of_roles.get(key) for key in ("query_length", "document_length")},
        "expansion": of_roles.get("query_expansion"),
        "skipped": mask.get("skiplist_words") or (),
        "skipped_in": [tasks] if isinstance(tasks, str) else tasks,
        "similarity_fn_name": settings.get("similarity_fn_name") or "maxsim",
        "limits": limits,
        "lowercase": lowercase,
    }


def _pylate(folder: Path, modules: list[ModuleEntry], settings: Fields) -> Fields:
    path = folder / SETTINGS
    refuse_unknown(path, settings, MODEL_KEYS | _PYLATE_KEYS)
    _check_kinds(folder, modules, {"Dense", PYLATE_DENSE}, masks=0)
    limits, lowercase = read_transformer(transformer_folder(folder))
    prefixes = {role: settings[key] or "" for role, key in _PREFIXES.items() if key in settings}
    words = settings.get("skiplist_words")
    if words is None:
        implied = prefixes or settings.get("model_type") == "ColBERT"
        words = tuple(string.punctuation) if implied else ()
    expansion = _pylate_expansion(settings)
    filled_up = expansion is not None and "query_expansion" not in settings
    named = settings.get("similarity_fn_name")
    return {
        "modules": [*(_token_module(entry) for entry in modules[1:]), Normalize()],
        **_prompts(path, settings, prefixes),
        "markers": tuple(prefixes.values()),
        "query_length": None if filled_up else settings.get("query_length"),
        "document_length": settings.get("document_length"),
        "expansion": expansion,
        "skipped": words,
        "similarity_fn_name": "meanmaxsim" if named == "meanmaxsim" else "maxsim",
        "limits": limits,
        "lowercase": lowercase,
    }


def _pylate_expansion(settings: Fields) -> Any:
    """Return PyLate's query expansion; None if a key disables it, or no key is PyLate's."""
    if "query_expansion" in settings:
        return settings["query_expansion"]
    if not _PYLATE_KEYS & settings.keys() or settings.get("do_query_expansion") is False:
        return None
    attend = settings.get("attend_to_expansion_tokens", settings.get("attend_to_mask_tokens"))
    length = settings.get("query_length") or _USUAL_LENGTH
    return {"strategy": "fixed", "length": length, "attend": bool(attend)}


def _stanford(folder: Path) -> Fields:
    content = read_object(path := folder / METADATA)
    read_one_of(path, content, "similarity", ("cosine",), "cosine")
    markers = {
        "query": f"{content.get('query_token_id') or '[unused0]'} ",
        "document": f"{content.get('doc_token_id') or '[unused1]'} ",
    }
    hidden_size = read_object(folder / "config.json").get("hidden_size")
    sizes = {"in_features": hidden_size, "out_features": content.get("dim", 128)}
    dense = Dense.model_validate({**sizes, "bias": False, "activation": "Identity"})
    return {
        "modules": (dense, Normalize()),
        "prompts": markers,
        "markers": tuple(markers.values()),
        "document_length": content.get("doc_maxlen"),
        "expansion": {
            "strategy": "fixed",
            "length": content.get("query_maxlen") or _USUAL_LENGTH,
            "attend": bool(content.get("attend_to_mask_tokens")),
        },
        "skipped": tuple(string.punctuation) if content.get("mask_punctuation", True) else (),
    }


def _prompts(path: Path, settings: Fields, prefixes: Mapping[str, str] | None = None) -> Fields:
    """Return the prompts, each with PyLate's prefix, which is not repeated."""
    fields = read_prompts(path, settings)
    prompts: dict[str, str] = dict.fromkeys(ROLES, "") | fields["prompts"]
    for role, prefix in (prefixes or {}).items():
        prompts[role] = prefix + prompts[role].removeprefix(prefix)
    return fields | {"prompts": prompts}


def _check_kinds(
    folder: Path, modules: Sequence[ModuleEntry], known: set[str], *, masks: int
) -> None:
    """Raise an error unless modules are a Transformer, then known ones with `masks` masks."""
    kinds = [module.kind for module in modules]
    known_only = kinds[:1] == ["Transformer"] and set(kinds[1:]) <= known
    if not known_only or kinds.count("MultiVectorMask") != masks:
        raise ConfigError(
            f"{folder / MODULES}: the modules {' → '.join(kinds)} are not supported for a vector a "
            "token; Transformer, then Dense and Normalize with one MultiVectorMask, or PyLate's "
            "Transformer and Dense, are"
        )


def _token_module(entry: ModuleEntry) -> TokenModule:
    if entry.kind != "Normalize":
        return read_dense(entry, (None, _TOKENS))
    content = read_object(path := entry.folder / "config.json")
    read_one_of(path, content, "module_input_name", (_TOKENS,))
    read_one_of(path, content, "module_output_name", (None, _TOKENS))
    return Normalize()
