"""Vector settings of a checkpoint: pooling, later modules, length limit, prompts. Without torch.

Formats: a folder of sentence-transformers, whose `modules.json` lists the modules of a vector; a
folder of transformers, which that library serves with mean pooling; or a tower of CLIP or SigLIP,
whose `config.json` gives its projection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from model.artifact.sentence import SentenceConfig
from model.config.files import naming, read_object
from model.errors import ConfigError
from model.families.jina_v3 import task_names
from model.families.pictures import PICTURE_TYPES
from model.numerics.pooling import PoolingMode, PoolingName, modes_of
from model.numerics.vector_modules import ENCODER_ACTIVATIONS, Dense, LayerNorm, VectorModule
from model.sources.files import (
    MODULES,
    SETTINGS,
    STATIC_EMBEDDING,
    ModuleEntry,
    listed_modules,
    transformer_folder,
)
from model.sources.sentence_files import (
    read_model,
    read_pooling,
    read_prompts,
    read_transformer,
    read_vector_module,
)
from model.sources.task_files import read_late_files, read_logit_score, task_kind

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
_REMEDY = "give a checkpoint that makes one vector of a text"


def check_model_type(path: Path, content: Mapping[str, Any]) -> None:
    """Raise an error if `config_sentence_transformers.json` names an unsupported class."""
    kind = content.get("model_type") or "SentenceTransformer"
    if kind != "SentenceTransformer":
        reason = _MODEL_TYPES.get(str(kind), "its class is not known")
        raise ConfigError(f"{path}: model_type {kind!r} is not supported: {reason}; {_REMEDY}")


def check_modules(path: Path, kinds: Sequence[str], *, tower: bool = False) -> None:
    """Raise an error for modules, or an order of them, that do not make one vector of a text.

    A tower of CLIP or SigLIP pools by itself.
    """
    for kind in () if tower else kinds:
        reason = _LATE if kind.startswith("pylate.") else _KINDS.get(kind)
        if reason:
            raise ConfigError(f"{path}: the module {kind} is not supported: {reason}; {_REMEDY}")
    beginnings = (["Transformer"], ["CLIPModel"]) if tower else (["Transformer", "Pooling"],)
    count = len(beginnings[0])
    if kinds[:count] not in beginnings or not set(kinds[count:]) <= _AFTER_POOLING:
        named = " → ".join(kinds) or "(none)"
        of_towers, first = "", "Transformer → Pooling"
        if tower:
            of_towers, first = " for CLIP and SigLIP", "Transformer or CLIPModel"
        raise ConfigError(
            f"{path}: the modules {named} are not supported{of_towers}; {first}, then any of "
            "Dense, LayerNorm, Normalize and Dropout are"
        )


def check_architecture(folder: Path, config: Mapping[str, Any]) -> PoolingName:
    """Return the pooling of a folder without `modules.json`: sentence-transformers' own for texts.

    Picture encoders pool the class token.
    """
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list):
        raise ConfigError(f"{folder / 'config.json'}: architectures is not a list")
    for name in map(str, architectures):
        classifier = name.endswith("ForSequenceClassification")
        if classifier or "ColBERT" in name:
            raise ConfigError(
                f"{folder / 'config.json'}: the architecture {name} is not supported: "
                f"{_CROSS_ENCODER if classifier else _LATE}; {_REMEDY}"
            )
    if config.get("model_type") in PICTURE_TYPES:
        return "cls"
    causal = architectures and str(architectures[0]).endswith("ForCausalLM")
    return "last" if causal and config.get("is_causal", True) else "mean"


def read_sentence(folder: Path, longest: int, hidden_size: int) -> SentenceConfig:
    """Return the vector settings of a checkpoint folder.

    An absent file means sentence-transformers' defaults. `longest` bounds the limit on a text's
    tokens.
    """
    fields, given = _read(folder)
    limits = [limit for limit in given if limit is not None]
    for limit in limits:
        if not isinstance(limit, int) and (not isinstance(limit, float) or math.isnan(limit)):
            raise ConfigError(f"{folder}: the limit on a text's tokens is {limit!r}, not a number")
    with naming(f"{folder}: invalid sentence-transformers files"):
        sentence = SentenceConfig(max_length=min([*limits, longest]), **fields)
    if sentence.vector_size(hidden_size) is None:
        raise ConfigError(
            f"{folder / MODULES}: the sizes of its modules do not fit one another: pooling "
            f"gives {len(modes_of(sentence.pooling)) * hidden_size} features"
        )
    return sentence


def _read(folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """Return the fields set by a checkpoint's files, and the limits on a text's tokens."""
    inside, entries = transformer_folder(folder), listed_modules(folder)
    config, tokenizer = (read_object(inside / f"{n}.json") for n in ("config", "tokenizer_config"))
    longest = tokenizer.get("model_max_length", tokenizer.get("max_len"))
    task = task_kind(folder)
    if task == "late_interaction":
        files = read_late_files(folder)
        return {name: getattr(files, name) for name in _LATE_FIELDS}, [*files.limits, longest]
    limits: list[Any] = []
    fields: dict[str, Any] = {}
    read_logit_score(folder)
    pools = [entry.kind for entry in entries or ()][1:2] == ["Pooling"]
    tower = None if pools else tower_vectors(inside, config)
    scores = tower is None and task not in (None, "hybrid")
    if tower is not None:
        fields = {"pooling": tower.pooling, "modules": tower.modules}
    if entries is not None:  # without modules.json, the library ignores its other files
        limits, lowercase = read_transformer(inside, any_task=scores, tower=tower is not None)
        later = _prompts(folder) if scores else _from_modules(folder, entries, tower)
        fields |= later | {"lowercase": lowercase}
    elif task == "hybrid":
        fields = {"pooling": "cls", "normalize": True}
    elif not (scores or tower):
        fields["pooling"] = check_architecture(inside, config)
    fields |= _tasks(inside, config, fields.get("prompts", {}))
    if not fields.get("matryoshka_dims"):
        names = ("matryoshka_dims", "matryoshka_dimensions")
        fields["matryoshka_dims"] = next(filter(None, map(config.get, names)), ())
    return fields, [*limits, longest]


_LATE_FIELDS = ("prompts", "default_prompt_name", "lowercase", "similarity_fn_name")


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
    path = folder / SETTINGS
    content = read_object(path)
    if content.get("max_active_dims"):
        raise ConfigError(
            f"{path}: max_active_dims is not supported; sparse vectors are whole here"
        )
    return read_prompts(path, content)


def _from_modules(
    folder: Path, entries: list[ModuleEntry], tower: TowerVectors | None
) -> dict[str, Any]:
    """Return the fields set by sentence-transformers' files, with the modules after pooling.

    A tower has modules of its own before them.
    """
    settings = folder / SETTINGS
    check_model_type(settings, read_object(settings))
    kinds = [entry.kind for entry in entries]
    check_modules(folder / MODULES, kinds, tower=tower is not None)
    fields: dict[str, Any] = {}
    if tower is None:
        fields["pooling"], fields["include_prompt"] = read_pooling(entries[1])
    after = entries[2 if tower is None else 1 :]
    modules = [module for entry in after if (module := read_vector_module(entry))]
    fields["normalize"] = bool(modules) and modules[-1].kind == "Normalize"
    while modules and modules[-1].kind == "Normalize":
        modules.pop()
    fields["modules"] = (*(tower.modules if tower else ()), *modules)
    return fields | read_model(settings)


_END_TOKEN = 49407
"""transformers' default of `eos_token_id`."""
_HIGHEST = 2
"""Value of `eos_token_id` in configs of the first release, for which transformers pools the token
with the highest id."""


@dataclass(frozen=True)
class TowerVectors:
    """Pooling of a tower, and the modules after it."""

    pooling: PoolingMode
    modules: tuple[VectorModule, ...] = ()
    places: tuple[str, ...] = ()
    """Key of each module in the checkpoint, without the tower's prefix."""
    end_token_id: int | Literal["highest"] | None = None
    """Id of the token whose first occurrence is pooled; None for the last token, whatever it is."""
    padded: bool = False
    """Whether texts are padded to their maximum length, with padding tokens that are attended."""


def tower_vectors(folder: Path, config: Mapping[str, Any]) -> TowerVectors | None:
    """Return the vector settings of a tower; None for any other encoder."""
    path, kind = folder / "config.json", str(config.get("model_type"))
    size = config.get("hidden_size", 512 if kind == "clip_text_model" else 768)
    projections: tuple[Dense, ...] = ()
    if any(str(name).endswith("WithProjection") for name in config.get("architectures") or []):
        features = config.get("projection_dim") or 512
        projections = (_linear(size, features, bias=False),)
    match kind:
        case "clip_text_model":
            end = config.get("eos_token_id", _END_TOKEN)
            if not isinstance(end, int) or isinstance(end, bool):
                raise ConfigError(f"{path}: eos_token_id {end!r} is not a token id")
            places = ("text_projection",)[: len(projections)]
            return TowerVectors("last", projections, places, "highest" if end == _HIGHEST else end)
        case "siglip_text_model":
            head = _linear(size, config.get("projection_size") or size)
            return TowerVectors("last", (head,), ("head",), padded=True)
        case "clip_vision_model":
            norm = LayerNorm(dimension=size, eps=config.get("layer_norm_eps", 1e-5))
            names = ("post_layernorm", "visual_projection")[: 1 + len(projections)]
            return TowerVectors("cls", (norm, *projections), names)
        case "siglip_vision_model":
            if config.get("vision_use_head") is False:
                raise ConfigError(
                    f"{path}: vision_use_head is false, so that pictures have no vector"
                )
            activation = config.get("hidden_act", "gelu_pytorch_tanh")
            if activation not in ENCODER_ACTIVATIONS:
                known = ", ".join(sorted(ENCODER_ACTIVATIONS))
                raise ConfigError(
                    f"{path}: hidden_act {activation!r} of the pooling is none of {known}"
                )
            return TowerVectors("attention")
    return None


def _linear(inputs: int, outputs: int, *, bias: bool = True) -> Dense:
    return Dense(in_features=inputs, out_features=outputs, bias=bias, activation="Identity")
