"""Configuration files of sentence-transformers, versions 1 to 6.2, checked for unknown keys.

An unsupported key that could change a vector is an error that names it. Absent keys have
sentence-transformers' defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from model.config.files import naming, read_object
from model.errors import ConfigError
from model.numerics.pooling import PoolingMode, PoolingModes
from model.numerics.vector_modules import (
    DENSE_ACTIVATIONS,
    Dense,
    LayerNorm,
    Normalize,
    VectorModule,
)
from model.sources.files import TRANSFORMER_FILES, ModuleEntry

Fields = dict[str, Any]

_POOLING_MODES: Mapping[str, PoolingMode] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean",
    "lasttoken": "last",
}
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Boolean keys of versions up to 5, in the order in which their vectors are concatenated."""
_TRANSFORMER_VALUES: Mapping[str, Any] = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
}
_TOWER_VALUES: Mapping[str, Any] = {
    "transformer_task": "feature-extraction",
    "module_output_name": "sentence_embedding",
    "modality_config": {
        name: {"method": f"get_{name}_features", "method_output_name": "pooler_output"}
        for name in ("text", "image")
    },
}
"""Values for CLIP and SigLIP, whose vectors are the results of their projections."""
_CALLS = "processing_kwargs"
"""Key of arguments of transformers' processor. Padding affects no text here but SigLIP's, which are
always padded to the full length."""
_LOADING_KEYS = {"model_args", "model_kwargs", "config_args", "config_kwargs"}
_TOKENIZER_KEYS = {"tokenizer_args", "processor_kwargs"}
_WITHOUT_EFFECT = {
    "add_pooling_layer",
    "attn_implementation",
    "device_map",
    "dtype",
    "low_cpu_mem_usage",
    "padding_side",
    "torch_dtype",
    "trust_remote_code",
    "use_cache",
    "use_fast",
    "use_safetensors",
}
"""Arguments of transformers that only affect loading or padding."""
MODEL_KEYS = {
    "__version__",
    "default_prompt_name",
    "matryoshka_dims",
    "model_type",
    "prompts",
    "requirements",
    "similarity_fn_name",
    "truncate_dim",
}
_OWN_INPUT = (None, "sentence_embedding")


def read_model(path: Path) -> Fields:
    """Read `config_sentence_transformers.json`: prompts, number of dimensions, similarity."""
    content = read_object(path)
    refuse_unknown(path, content, MODEL_KEYS)
    if (named := content.get("similarity_fn_name")) in ("maxsim", "meanmaxsim"):
        raise ConfigError(f"{path}: similarity_fn_name {named!r} needs a vector per token")
    return read_prompts(path, content) | {
        "truncate_dim": content.get("truncate_dim"),
        "matryoshka_dims": content.get("matryoshka_dims") or (),
        "similarity_fn_name": content.get("similarity_fn_name") or "cosine",
    }


def read_prompts(path: Path, content: Fields) -> Fields:
    """Return `prompts` by name, and `default_prompt_name`."""
    prompts = content.get("prompts") or {}
    if not isinstance(prompts, dict):
        raise ConfigError(f"{path}: prompts is not a JSON object")
    prompts = {name: prompt or "" for name, prompt in prompts.items()}  # null is the empty prompt
    default = content.get("default_prompt_name")
    # the library always has the prompts query and document
    known = [None, "query", "document", *prompts]
    if default not in known:
        raise ConfigError(f"{path}: default_prompt_name {default!r} is not one of its prompts")
    return {"prompts": prompts, "default_prompt_name": default if default in prompts else None}


def read_transformer(
    folder: Path, *, any_task: bool = False, tower: bool = False, also: Set[str] = frozenset()
) -> tuple[list[Any], Any]:
    """Read `sentence_bert_config.json`: limits on a text's tokens, and whether it is lower-cased.

    With `any_task` it may compute something other than token vectors; `tower` is for CLIP and
    SigLIP; `also` are further allowed keys.
    """
    paths = [path for name in TRANSFORMER_FILES if read_object(path := folder / name)]
    path = paths[0] if paths else folder / TRANSFORMER_FILES[0]
    content = read_object(path)
    known = {"max_seq_length", "do_lower_case", "unpad_inputs", *_TRANSFORMER_VALUES, *also}
    known |= {_CALLS} if tower else set()
    refuse_unknown(path, content, known | _LOADING_KEYS | _TOKENIZER_KEYS)
    for key, value in (_TOWER_VALUES if tower else _TRANSFORMER_VALUES).items():
        if not any_task:
            read_one_of(path, content, key, (value,), value)
    limits = [content.get("max_seq_length"), _longest(path, content) if tower else None]
    for key in sorted((_LOADING_KEYS | _TOKENIZER_KEYS) & content.keys()):
        arguments = content[key] or {}
        if not isinstance(arguments, dict):
            raise ConfigError(f"{path}: {key} is not a JSON object")
        limit = {"model_max_length"} if key in _TOKENIZER_KEYS else set()
        refuse_unknown(path, arguments, _WITHOUT_EFFECT | limit, f"{key}.")
        limits.append(arguments.get("model_max_length") if limit else None)
    return [limit for limit in limits if limit is not None], content.get("do_lower_case", False)


def _longest(path: Path, content: Fields) -> Any:
    """Return the maximum tokens of a text in `processing_kwargs`; None without a maximum."""
    calls = content.get(_CALLS) or {}
    own = calls.get("text", {}) if isinstance(calls, dict) else None
    if not isinstance(own, dict):
        raise ConfigError(f"{path}: {_CALLS} is not a JSON object of objects")
    refuse_unknown(path, calls, {"text"}, f"{_CALLS}.")
    refuse_unknown(path, own, {"padding", "max_length", "truncation"}, f"{_CALLS}.text.")
    return own.get("max_length")


def read_pooling(entry: ModuleEntry) -> tuple[PoolingModes, Any]:
    """Return the pooling, and whether it includes a prompt's tokens."""
    path, content = _config(entry)
    own = {"embedding_dimension", "word_embedding_dimension", "pooling_mode", "include_prompt"}
    refuse_unknown(path, content, own | _POOLING_FLAGS.keys())
    named = content.get("pooling_mode")
    if named is None:
        named = [mode for flag, mode in _POOLING_FLAGS.items() if content.get(flag)] or ["mean"]
    names = named if isinstance(named, list) else [named]
    for name in names or [named]:
        if not isinstance(name, str) or name not in _POOLING_MODES:
            raise ConfigError(
                f"{path}: pooling {name} is not supported; {', '.join(_POOLING_MODES)} are"
            )
    modes = tuple(_POOLING_MODES[name] for name in names)
    return (modes[0] if len(modes) == 1 else modes), content.get("include_prompt", True)


def read_vector_module(entry: ModuleEntry) -> VectorModule | None:
    """Return a module after pooling; None if it computes nothing, as Dropout."""
    if entry.kind == "Dropout":
        return None
    if entry.kind == "Normalize":  # versions up to 5 leave its folder empty
        path = entry.folder / "config.json"
        _check_input(path, content := read_object(path))
        refuse_unknown(path, content, {"module_input_name", "module_output_name"})
        return Normalize()
    if entry.kind == "Dense":
        return read_dense(entry)
    path, content = _config(entry)
    refuse_unknown(path, content, {"dimension"})
    with naming(path):
        return LayerNorm(**content)


def read_dense(entry: ModuleEntry, inputs: Sequence[str | None] = _OWN_INPUT) -> Dense:
    """Read a Dense module.

    `inputs` are the allowed names of its input and output; error messages suggest the last one.
    """
    path, content = _config(entry)
    _check_input(path, content, inputs)
    own = {"in_features", "out_features", "bias", "use_residual", "activation_function"}
    refuse_unknown(path, content, own | {"module_input_name", "module_output_name"})
    named = content.get("activation_function", "torch.nn.Tanh")
    package, _, activation = str(named).rpartition(".")
    if activation not in DENSE_ACTIVATIONS or not f"{package}.".startswith("torch.nn."):
        raise ConfigError(
            f"{path}: activation_function {named!r} is not supported; "
            f"{', '.join(DENSE_ACTIVATIONS)} of torch.nn are"
        )
    fields = {
        key: content[key] for key in ("in_features", "out_features", "bias") if key in content
    }
    residual = content.get("use_residual", False)
    with naming(path):
        return Dense.model_validate(fields | {"activation": activation, "residual": residual})


def _check_input(path: Path, content: Fields, inputs: Sequence[str | None] = _OWN_INPUT) -> None:
    for key in ("module_input_name", "module_output_name"):
        read_one_of(path, content, key, inputs)


def _config(entry: ModuleEntry) -> tuple[Path, Fields]:
    path = entry.folder / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"{entry.folder.parent / 'modules.json'} names {entry.folder.name}, "
            "which holds no config.json"
        )
    return path, read_object(path)


def read_one_of(
    path: Path, content: Fields, key: str, values: Sequence[Any], default: Any = None
) -> Any:
    """Return a key's value, or the default; raise an error for a value that is not supported."""
    value = content.get(key, default)
    if value not in values:
        known = [repr(own) for own in values if own is not None]
        supported = f"{' and '.join(known)} {'is' if len(known) == 1 else 'are'}"
        raise ConfigError(f"{path}: {key} {value!r} is not supported; {supported}")
    return value


def refuse_unknown(path: Path, content: Fields, known: Set[str], inside: str = "") -> None:
    """Raise an error for unknown keys of a file, unless their value is null, false or empty."""
    unknown = sorted(key for key, value in content.items() if key not in known and value)
    if unknown:
        names = ", ".join(inside + key for key in unknown)
        raise ConfigError(f"{path}: {names} is not supported")
