"""Configuration files of a late-interaction model, checked for unknown keys. Without torch.

Formats, with their meaning in sentence-transformers 6.2:

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

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from model.artifact.modules import (
    MODULES,
    ModuleEntry,
    listed_modules,
    read_object,
    transformer_folder,
)
from model.artifact.sentence_files import (
    MODEL_KEYS,
    Fields,
    read_dense,
    read_prompts,
    read_transformer,
    refuse_unknown,
)
from model.errors import ConfigError
from model.numerics.late_interaction import ROLES, Role, TokenModule
from model.numerics.vector_modules import Dense, Normalize

PYLATE_DENSE = "pylate.models.Dense.Dense"
METADATA = "artifact.metadata"
_SETTINGS = "config_sentence_transformers.json"
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


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Expansion(_Part):
    """Query expansion, as the key `query_expansion` of sentence-transformers describes it."""

    strategy: Literal["fixed", "min"]
    length: PositiveInt
    attend: bool = False
    token: str | None = None
    """Expansion token; the tokenizer's mask token when None."""


class LateFiles(_Part):
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
    similarity: Literal["maxsim", "meanmaxsim"] = "maxsim"
    limits: tuple[Any, ...] = ()
    """Limits on the number of tokens of any text."""
    lowercase: bool = False


def is_late_interaction(folder: Path) -> bool:
    """Return whether a folder holds a late-interaction model (a vector per token, MaxSim)."""
    modules = listed_modules(folder)
    if modules is None:
        named = read_object(folder / "config.json").get("architectures")
        return isinstance(named, list) and _STANFORD in named
    settings = read_object(folder / _SETTINGS)
    if settings.get("model_type") not in (None, "SentenceTransformer"):
        return settings["model_type"] in ("MultiVectorEncoder", "ColBERT")
    kinds = [module.kind for module in modules]
    late = any(kind.startswith("pylate.") or kind == "MultiVectorMask" for kind in kinds)
    return late or any(key in settings for key in _PREFIXES.values())


def read_late_files(folder: Path) -> LateFiles:
    """Read the files of a late-interaction model."""
    modules = listed_modules(folder)
    try:
        if modules is None:
            return LateFiles(**_stanford(folder))
        settings = read_object(folder / _SETTINGS)
        if settings.get("model_type") == "MultiVectorEncoder":
            return LateFiles(**_sentence_transformers(folder, modules, settings))
        return LateFiles(**_pylate(folder, modules, settings))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{folder}: invalid files of a late-interaction model: {where}: {first['msg']}"
        ) from None


def _sentence_transformers(folder: Path, modules: list[ModuleEntry], settings: Fields) -> Fields:
    path = folder / _SETTINGS
    refuse_unknown(path, settings, MODEL_KEYS)
    masks = [module for module in modules if module.kind == "MultiVectorMask"]
    others = [module for module in modules if module.kind != "MultiVectorMask"]
    if len(masks) != 1 or not _are(others, {"Dense", "Normalize"}):
        raise _refused(folder, modules)
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
        "similarity": settings.get("similarity_fn_name") or "maxsim",
        "limits": limits,
        "lowercase": lowercase,
    }


def _pylate(folder: Path, modules: list[ModuleEntry], settings: Fields) -> Fields:
    path = folder / _SETTINGS
    refuse_unknown(path, settings, MODEL_KEYS | _PYLATE_KEYS)
    if not _are(modules, {"Dense", PYLATE_DENSE}):
        raise _refused(folder, modules)
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
        "similarity": "meanmaxsim" if named == "meanmaxsim" else "maxsim",
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
    if content.get("similarity", "cosine") != "cosine":
        raise ConfigError(f"{path}: similarity {content['similarity']} is not supported; cosine is")
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
    prompts, default = read_prompts(path, settings)
    composed = {
        role: prefix + prompts.get(role, "").removeprefix(prefix)
        for role, prefix in (prefixes or {}).items()
    }
    return {
        "prompts": dict.fromkeys(ROLES, "") | prompts | composed,
        "default_prompt_name": default,
    }


def _are(modules: Sequence[ModuleEntry], known: set[str]) -> bool:
    """Return whether the modules are a Transformer followed by known ones only."""
    kinds = [module.kind for module in modules]
    return kinds[:1] == ["Transformer"] and set(kinds[1:]) <= known


def _refused(folder: Path, modules: Sequence[ModuleEntry]) -> ConfigError:
    kinds = " → ".join(module.kind for module in modules)
    return ConfigError(
        f"{folder / MODULES}: the modules {kinds} are not supported for a vector a token; "
        "Transformer, then Dense and Normalize with one MultiVectorMask, or PyLate's Transformer "
        "and Dense, are"
    )


def _token_module(entry: ModuleEntry) -> TokenModule:
    if entry.kind != "Normalize":
        return read_dense(entry, (None, _TOKENS))
    content = read_object(path := entry.folder / "config.json")
    reads = content.get("module_input_name")
    if reads != _TOKENS or content.get("module_output_name", reads) not in (None, _TOKENS):
        raise ConfigError(f"{path}: module_input_name {reads!r} is not supported; {_TOKENS!r} is")
    return Normalize()
