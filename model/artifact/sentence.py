"""Vector settings of a checkpoint: pooling, later modules, length limit, prompts.

Format: a folder of sentence-transformers, whose `modules.json` lists the modules of a vector, or a
folder of transformers, which that library serves with mean pooling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from model.artifact.late_files import LateFiles, read_late_files
from model.artifact.logit_score import read_logit_score
from model.artifact.modules import (
    MODULES,
    STATIC_EMBEDDING,
    ModuleEntry,
    listed_modules,
    read_object,
    transformer_folder,
)
from model.artifact.sentence_files import (
    read_model,
    read_pooling,
    read_prompts,
    read_transformer,
    read_vector_module,
)
from model.artifact.task import task_kind
from model.artifact.tower_files import tower_vectors
from model.errors import ConfigError
from model.families.jina_tasks import task_names
from model.families.pictures import PICTURE_TYPES
from model.numerics.pair_template import PairTemplate
from model.numerics.pooling import PoolingModes, PoolingName, modes_of
from model.numerics.vector_modules import VectorModule, size_after

_CROSS_ENCODER = "it scores pairs (a cross-encoder or classifier)"
_SPARSE = "it gives sparse vectors (SPLADE)"
_LATE = "it gives a vector a token (ColBERT), in a form that is not known"
_NO_ENCODER = "it is not computed by a transformer encoder"
_MODEL_TYPES = {
    "CrossEncoder": _CROSS_ENCODER,
    "SparseEncoder": _SPARSE,
    "MultiVectorEncoder": _LATE,
}
_KINDS = {
    "LogitScore": _CROSS_ENCODER,
    "MLMTransformer": _SPARSE,
    "SpladePooling": _SPARSE,
    "SparseAutoEncoder": _SPARSE,
    "SparseStaticEmbedding": _SPARSE,
    "MultiVectorMask": _LATE,
    "TokenPooling": _LATE,
    "CLIPModel": "it encodes images",
    **dict.fromkeys(
        ("BoW", "CNN", "LSTM", STATIC_EMBEDDING, "WordEmbeddings", "WordWeights"), _NO_ENCODER
    ),
    "WeightedLayerPooling": "it mixes the hidden states of several layers",
    "Router": "it has an encoder for each kind of input",
    "Asym": "it has an encoder for each kind of input",
}
_AFTER_POOLING = {"Dense", "LayerNorm", "Normalize", "Dropout"}
_SUPPORTED = "Transformer → Pooling, then any of Dense, LayerNorm, Normalize and Dropout"
_REMEDY = "give a checkpoint that makes one vector of a text"


def check_model_type(path: Path, content: Mapping[str, Any]) -> None:
    """Raise an error if `config_sentence_transformers.json` names an unsupported class."""
    kind = content.get("model_type") or "SentenceTransformer"
    if kind != "SentenceTransformer":
        reason = _MODEL_TYPES.get(str(kind), "its class is not known")
        raise ConfigError(f"{path}: model_type {kind!r} is not supported: {reason}; {_REMEDY}")


def check_modules(path: Path, kinds: Sequence[str]) -> None:
    """Raise an error for modules, or an order of them, that do not make one vector of a text."""
    for kind in kinds:
        reason = _LATE if kind.startswith("pylate.") else _KINDS.get(kind)
        if reason:
            raise ConfigError(f"{path}: the module {kind} is not supported: {reason}; {_REMEDY}")
    if list(kinds[:2]) != ["Transformer", "Pooling"] or not set(kinds[2:]) <= _AFTER_POOLING:
        raise ConfigError(
            f"{path}: the modules {' → '.join(kinds) or '(none)'} are not supported; "
            f"{_SUPPORTED} are"
        )


def check_after_tower(path: Path, kinds: Sequence[str]) -> None:
    """Raise an error for modules of CLIP or SigLIP that do not make one vector of an input."""
    if kinds[:1] not in (["Transformer"], ["CLIPModel"]) or not set(kinds[1:]) <= _AFTER_POOLING:
        raise ConfigError(
            f"{path}: the modules {' → '.join(kinds) or '(none)'} are not supported for CLIP and "
            "SigLIP; Transformer or CLIPModel, then any of Dense, LayerNorm, Normalize and Dropout "
            "are"
        )


def check_architecture(folder: Path, config: Mapping[str, Any]) -> PoolingName:
    """Return the pooling of a folder without `modules.json`: sentence-transformers' own for texts.

    Picture encoders pool the class token.
    """
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list):
        raise ConfigError(f"{folder / 'config.json'}: architectures is not a list")
    for name in map(str, architectures):
        reason = None
        if name.endswith("ForSequenceClassification"):
            reason = _CROSS_ENCODER
        elif "ColBERT" in name:
            reason = _LATE
        if reason:
            raise ConfigError(
                f"{folder / 'config.json'}: the architecture {name} is not supported: {reason}; "
                f"{_REMEDY}"
            )
    if config.get("model_type") in PICTURE_TYPES:
        return "cls"
    causal = architectures and str(architectures[0]).endswith("ForCausalLM")
    return "last" if causal and config.get("is_causal", True) else "mean"


SimilarityName = Literal["cosine", "dot", "euclidean", "manhattan", "maxsim", "meanmaxsim"]
"""Similarity functions; the last two are for late interaction only."""


class SentenceConfig(BaseModel):
    """Modules that turn a text into one vector, and the checkpoint's prompts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pooling: PoolingModes = "mean"
    modules: tuple[VectorModule, ...] = ()
    """Modules between pooling and a final normalisation."""
    normalize: bool = False
    """Whether the last module normalises to unit length."""
    max_length: int = Field(gt=0)
    """Maximum tokens of one input, including special tokens."""
    prompts: dict[str, str] = {}
    default_prompt_name: str | None = None
    """Name of the prompt for requests that name none."""
    tasks: tuple[str, ...] = ()
    """Tasks, in the order of their segments 1 … K: the prompt of a task selects its segment."""
    include_prompt: bool = True
    """Whether pooling includes the tokens of a prompt."""
    truncate_dim: PositiveInt | None = None
    """Default number of leading features to keep; all when None."""
    matryoshka_dims: tuple[PositiveInt, ...] = ()
    """Numbers of leading features that the checkpoint was trained to be truncated to."""
    similarity_fn_name: SimilarityName = "cosine"
    """Similarity function that the vectors were trained for."""
    lowercase: bool = False
    """Whether texts are lower-cased before tokenization."""
    pair_templates: dict[str, PairTemplate] = {}
    """Text around a pair by the name of the prompt, "" for no prompt; empty without a chat
    template."""
    end_token_id: int | None = None
    """Id of the token whose first occurrence is the last token that is read, as CLIP's text tower
    pools it and later tokens cannot change its state. None if all tokens of a text are read."""
    pad_token_id: int | None = None
    """Id of the token that fills up each text to `max_length` tokens and is attended, as SigLIP's
    text tower was trained. None without such padding."""

    @classmethod
    def from_checkpoint(
        cls, folder: Path, max_position_embeddings: int, hidden_size: int
    ) -> SentenceConfig:
        """Read the files; an absent file means sentence-transformers' defaults."""
        fields, limits = _read(folder)
        try:
            sentence = cls(max_length=_least(folder, limits, max_position_embeddings), **fields)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigError(
                f"{folder}: invalid sentence-transformers files: {where}: {first['msg']}"
            ) from None
        if sentence.vector_size(hidden_size) is None:
            raise ConfigError(
                f"{folder / MODULES}: the sizes of its modules do not fit one another: pooling "
                f"gives {len(modes_of(sentence.pooling)) * hidden_size} features"
            )
        return sentence

    def vector_size(self, hidden_size: int, pooling: PoolingModes | None = None) -> int | None:
        """Return the size of a text's vector before truncation; None if modules do not fit it."""
        own = self.pooling if pooling is None else pooling
        return size_after(self.modules, len(modes_of(own)) * hidden_size)


def _read(folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """Return the fields set by a checkpoint's files, and the limits on a text's tokens."""
    inside, entries = transformer_folder(folder), listed_modules(folder)
    config, tokenizer = (read_object(inside / f"{n}.json") for n in ("config", "tokenizer_config"))
    limits: list[Any] = []
    fields: dict[str, Any] = {}
    task = task_kind(folder)
    if task == "late_interaction":
        files = read_late_files(folder)
        limit = tokenizer.get("model_max_length", tokenizer.get("max_len"))
        return _of_late_interaction(files), [*files.limits, limit]
    scores = task not in (None, "hybrid")
    read_logit_score(folder)
    tower = None if _pools(entries) else tower_vectors(inside, config)
    if tower is not None:
        fields = {"pooling": tower.pooling, "modules": tower.modules}
        if entries is not None:
            later, limits = _after_tower(folder, inside, entries)
            fields |= later | {"modules": (*tower.modules, *later["modules"])}
    elif entries is not None:  # without modules.json, the library ignores its other files
        fields = _prompts(folder) if scores else _from_modules(folder, entries)
        limits, fields["lowercase"] = read_transformer(inside, any_task=scores)
    elif task == "hybrid":
        fields |= {"pooling": "cls", "normalize": True}
    elif not scores:
        fields["pooling"] = check_architecture(inside, config)
    fields |= _tasks(inside, config, fields.get("prompts", {}))
    if not fields.get("matryoshka_dims"):
        names = ("matryoshka_dims", "matryoshka_dimensions")
        fields["matryoshka_dims"] = next(filter(None, map(config.get, names)), ())
    return fields, [*limits, tokenizer.get("model_max_length", tokenizer.get("max_len"))]


def _of_late_interaction(files: LateFiles) -> dict[str, Any]:
    """Return the fields of a late-interaction model."""
    return {
        "prompts": files.prompts,
        "default_prompt_name": files.default_prompt_name,
        "similarity_fn_name": files.similarity,
        "lowercase": files.lowercase,
    }


def _tasks(folder: Path, config: dict[str, Any], prompts: dict[str, str]) -> dict[str, Any]:
    """Return the tasks of a checkpoint, and all prompts with their instructions."""
    tasks = task_names(folder, config)
    if not tasks:
        return {}
    instructions = config.get("task_instructions") or {}
    texts = isinstance(instructions, dict) and all(
        isinstance(t, str) for t in instructions.values()
    )
    if not texts or not instructions.keys() <= {*tasks}:
        raise ConfigError(f"{folder / 'config.json'}: task_instructions are not texts of its tasks")
    return {"tasks": tasks, "prompts": dict.fromkeys(tasks, "") | prompts | instructions}


def _prompts(folder: Path) -> dict[str, Any]:
    """Return the prompts of a checkpoint with a task head, which has no vectors of texts."""
    path = folder / "config_sentence_transformers.json"
    content = read_object(path)
    if content.get("max_active_dims"):
        raise ConfigError(
            f"{path}: max_active_dims is not supported; sparse vectors are whole here"
        )
    prompts, default = read_prompts(path, content)
    return {"prompts": prompts, "default_prompt_name": default}


def _pools(entries: list[ModuleEntry] | None) -> bool:
    """Return whether a list of modules has its own Pooling after the encoder."""
    return [entry.kind for entry in entries or ()][1:2] == ["Pooling"]


def _after_tower(
    folder: Path, inside: Path, entries: list[ModuleEntry]
) -> tuple[dict[str, Any], list[Any]]:
    """Return the fields that sentence-transformers' files of a tower set, and limits of tokens."""
    settings = folder / "config_sentence_transformers.json"
    check_model_type(settings, read_object(settings))
    check_after_tower(folder / MODULES, [entry.kind for entry in entries])
    limits, lowercase = read_transformer(inside, tower=True)
    return {**_modules(entries[1:]), "lowercase": lowercase, **read_model(settings)}, limits


def _from_modules(folder: Path, entries: list[ModuleEntry]) -> dict[str, Any]:
    """Return the fields set by sentence-transformers' files."""
    settings = folder / "config_sentence_transformers.json"
    check_model_type(settings, read_object(settings))
    check_modules(folder / MODULES, [entry.kind for entry in entries])
    pooling, include_prompt = read_pooling(entries[1])
    return {
        "pooling": pooling,
        "include_prompt": include_prompt,
        **_modules(entries[2:]),
        **read_model(settings),
    }


def _modules(entries: list[ModuleEntry]) -> dict[str, Any]:
    """Return the modules after pooling, and whether the last one normalises."""
    modules = [module for entry in entries if (module := read_vector_module(entry))]
    normalize = bool(modules) and modules[-1].kind == "Normalize"
    while modules and modules[-1].kind == "Normalize":
        modules.pop()
    return {"modules": tuple(modules), "normalize": normalize}


def _least(folder: Path, limits: list[Any], longest: int) -> Any:
    known = [limit for limit in limits if limit is not None]
    for limit in known:
        number = isinstance(limit, int) or (isinstance(limit, float) and not math.isnan(limit))
        if not number:
            raise ConfigError(f"{folder}: the limit on a text's tokens is {limit!r}, not a number")
    return min([*known, longest])
