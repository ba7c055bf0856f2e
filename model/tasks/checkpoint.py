"""Loading of task heads from a checkpoint folder, and from an artifact's weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from model.checkpoint import filled, folder_tensors, stored_tensors
from model.config.encoder import EncoderConfig
from model.config.files import naming, read_object
from model.encoder.encoder import Encoder
from model.errors import CheckpointError, ConfigError
from model.numerics.task_head import TaskConfig, TaskKind, Transform
from model.sources.files import architectures, encoder_fields, transformer_folder
from model.sources.task_files import (
    WITH_TEACHER,
    LogitScore,
    read_logit_score,
    sparse_pooling,
    task_kind,
)
from model.tasks.head import TaskModule, task_head


@dataclass(frozen=True)
class Layout:
    """Keys of a task head in a checkpoint, without the family's prefix, and its activation."""

    output: str
    """Key of the last map."""
    dense: str | None = None
    """Key of the map before it; None without one."""
    activation: str = ""
    """Function after `dense`. If it starts with a colon, the key of `config.json` that names it;
    after a second colon, the default function."""
    norm: str | None = None
    """Key of the norm after the activation; None without one."""
    dense_bias: str = ""
    """Key of `config.json` for whether `dense` has a bias; empty if it always has one."""
    output_bias: str | bool = True
    """Whether `output` has a bias, or the key of `config.json` for it, which is true by default."""
    pooling: Literal["cls", "mean", "last", "first_two", "cls_mean"] | None = None
    """Pooling before a sequence classification, see `TaskConfig`; the config's
    `classifier_pooling` when None."""
    bias: str | None = None
    """Key of the last map's bias in checkpoints that store it elsewhere."""
    norm_eps: float | None = None
    """Epsilon of the norm; the encoder's when None."""
    smaller: bool = False
    """Whether `dense` maps to the size of the embeddings."""
    second: str | None = None
    """Key of a map of the second token. The logits of `output` and of this map are averaged."""


_MODERNBERT = Layout(
    output="classifier",
    dense="head.dense",
    activation=":classifier_activation:gelu",
    norm="head.norm",
    dense_bias="classifier_bias",
)
_ROBERTA = Layout(output="classifier.out_proj", dense="classifier.dense", activation="tanh")
_PREDICTIONS = Layout(
    output="cls.predictions.decoder",
    dense="cls.predictions.transform.dense",
    activation=":hidden_act:gelu",
    norm="cls.predictions.transform.LayerNorm",
    bias="cls.predictions.bias",
    smaller=True,
)
_LM_HEAD = Layout(
    output="lm_head.decoder",
    dense="lm_head.dense",
    activation="gelu",
    norm="lm_head.layer_norm",
    bias="lm_head.bias",
)
_CLASSIFIER = Layout(output="classifier")
_POOLER = Layout(output="classifier", dense="pooler.dense", activation="tanh")
_GTE_LM_HEAD = Layout(
    output="lm_head.decoder", dense="lm_head.dense", activation="gelu", norm="lm_head.norm"
)
_LAST = Layout(output="score", output_bias=False, pooling="last")

WITH_TEACHER_LAYOUT = Layout(
    output="cls_classifier", second="distillation_classifier", pooling="first_two"
)
"""Layout of DeiT with a distilled classifier."""
WORD_LOGITS = ("llama", "mistral", "qwen2", "qwen3")
"""Families whose logits of words are one map without a bias, `lm_head`."""
LAYOUTS: Mapping[TaskKind, Mapping[str, Layout]] = {
    "sequence_classification": {
        "albert": Layout(output="classifier", dense="pooler", activation="tanh"),
        "bert": _POOLER,
        "camembert": _ROBERTA,
        "deberta-v2": Layout(
            output="classifier", dense="pooler.dense", activation=":pooler_hidden_act:gelu"
        ),
        "distilbert": Layout(output="classifier", dense="pre_classifier", activation="relu"),
        "electra": Layout(
            output="classifier.out_proj", dense="classifier.dense", activation="gelu"
        ),
        "gte": _POOLER,
        "modernbert": _MODERNBERT,
        "mpnet": _ROBERTA,
        "new": _POOLER,
        "roberta": _ROBERTA,
        "xlm-roberta": _ROBERTA,
        **dict.fromkeys(WORD_LOGITS, _LAST),
        **dict.fromkeys(("deit", "vit"), replace(_CLASSIFIER, pooling="cls")),
        **dict.fromkeys(
            ("clip_vision_model", "siglip_vision_model"), replace(_CLASSIFIER, pooling="mean")
        ),
        **dict.fromkeys(
            ("dinov2", "dinov2_with_registers"), replace(_CLASSIFIER, pooling="cls_mean")
        ),
    },
    "token_classification": {
        **dict.fromkeys(
            (
                *("albert", "bert", "camembert", "deberta-v2", "distilbert", "electra", "mpnet"),
                *("gte", "new", "roberta", "xlm-roberta"),
            ),
            _CLASSIFIER,
        ),
        "modernbert": _MODERNBERT,
    },
    "sparse": {
        "albert": Layout(
            output="predictions.decoder",
            dense="predictions.dense",
            activation=":hidden_act:gelu_new",
            norm="predictions.LayerNorm",
            bias="predictions.bias",
            smaller=True,
        ),
        "bert": _PREDICTIONS,
        "camembert": _LM_HEAD,
        "deberta-v2": _PREDICTIONS,
        "distilbert": Layout(
            output="vocab_projector",
            dense="vocab_transform",
            activation=":activation:gelu",
            norm="vocab_layer_norm",
            norm_eps=1e-12,
        ),
        "electra": Layout(
            output="generator_lm_head",
            dense="generator_predictions.dense",
            activation="gelu",
            norm="generator_predictions.LayerNorm",
            smaller=True,
        ),
        "gte": _GTE_LM_HEAD,
        "modernbert": Layout(
            output="decoder",
            dense="head.dense",
            activation=":classifier_activation:gelu",
            norm="head.norm",
            dense_bias="classifier_bias",
            output_bias="decoder_bias",
        ),
        "mpnet": _LM_HEAD,
        "new": _GTE_LM_HEAD,
        "roberta": _LM_HEAD,
        "xlm-roberta": _LM_HEAD,
    },
}
"""Layouts by kind of task head and `model_type`."""

_WORD_LOGITS = "lm_head.weight"
"""Key of the map to the logits of words; without it they share the word embeddings."""
_OLD_NAMES = {"gamma": "weight", "beta": "bias"}
"""Names of norm parameters in checkpoints from before 2019 → current names."""


def load_task_head(folder: Path, encoder: Encoder) -> TaskModule | None:
    """Load the task head of a checkpoint, in float32 and in evaluation mode; None without one.

    A masked language model shares the encoder's word embeddings. `load_token_vectors` loads a
    late-interaction model's.
    """
    kind = task_kind(folder)
    if kind is None:
        return None
    if score := read_logit_score(folder):
        return _logit_score(folder, score, encoder)
    layout = _layout(folder, kind, encoder.config.model_type)
    config = read_task(folder, kind, layout, encoder.config)
    tensors = _tensors(transformer_folder(folder), layout)
    if kind == "sparse" and "output.weight" not in tensors:
        tensors["output.weight"] = encoder.embeddings.word.weight.detach()
    return build_task_head(config, encoder.config.hidden_size, tensors, str(folder))


def _logit_score(folder: Path, score: LogitScore, encoder: Encoder) -> TaskModule:
    """Return the head of one label whose weights are the rows of two words, subtracted."""
    config = TaskConfig(
        kind="sequence_classification",
        outputs=1,
        labels=("LABEL_0",),
        pooling="last",
        output_bias=False,
        pairs=score.chat_template is not None,
    )
    words = _word_logits(transformer_folder(folder), encoder)
    ids = [i for i in (score.true_token_id, score.false_token_id) if i is not None]
    if max(ids) >= len(words):
        raise ConfigError(f"{folder}: LogitScore's token id {max(ids)} is not in the vocabulary")
    rows = [words[index].to(torch.float32) for index in ids]
    weight = rows[0] - rows[1] if len(rows) == 2 else rows[0]
    tensors = {"output.weight": weight.unsqueeze(0)}
    return build_task_head(config, encoder.config.hidden_size, tensors, str(folder))


def _word_logits(folder: Path, encoder: Encoder) -> Tensor:
    """Return the map `[V, H]` from a hidden state to the logits of words."""
    if encoder.config.model_type not in WORD_LOGITS:
        raise ConfigError(
            f"{folder}: LogitScore is supported for {', '.join(WORD_LOGITS)}; not for "
            f"{encoder.config.model_type}"
        )
    for tensor in folder_tensors(folder, lambda key: key == _WORD_LOGITS).values():
        return tensor
    if read_object(folder / "config.json").get("tie_word_embeddings") is False:
        raise CheckpointError(f"{folder}: {_WORD_LOGITS} is missing, which LogitScore needs")
    return encoder.embeddings.word.weight.detach()


def load_task_weights(path: Path, config: TaskConfig, hidden_size: int) -> TaskModule:
    """Load the task head of an artifact's weights."""
    return build_task_head(config, hidden_size, stored_tensors(path), str(path))


def read_task(folder: Path, kind: TaskKind, layout: Layout, encoder: EncoderConfig) -> TaskConfig:
    """Read the config of a checkpoint's task head from its configuration files."""
    fields = encoder_fields(folder)
    if kind == "sparse":
        if not fields.get("legacy", True):
            raise ConfigError("config.json: legacy: false is not supported for sparse vectors")
        own = {"outputs": encoder.vocab_size, **sparse_pooling(folder)}
    else:
        labels = read_labels(fields)
        own = {"outputs": len(labels), "labels": labels, "pooling": "none"}
        if kind == "sequence_classification":
            own |= _rows(fields, layout, encoder)
    bias = layout.output_bias
    with naming("config.json: the task head"):
        return TaskConfig(
            kind=kind,
            transform=_transform(fields, layout, encoder),
            output_bias=fields.get(bias, True) if isinstance(bias, str) else bias,
            **own,
        )


def read_labels(fields: Mapping[str, Any]) -> list[str]:
    """Return the names of the labels in the order of their logits, as transformers does."""
    named = fields.get("id2label")
    if named is None:
        count = fields.get("num_labels", 2)
        if not isinstance(count, int) or count < 1:
            raise ConfigError(f"config.json: num_labels {count!r} is not a number of labels")
        return [f"LABEL_{number}" for number in range(count)]
    if not isinstance(named, dict) or named.keys() != {str(n) for n in range(len(named))}:
        raise ConfigError("config.json: id2label does not name the labels from 0 on")
    return [str(named[str(number)]) for number in range(len(named))]


def build_task_head(
    config: TaskConfig, hidden_size: int, tensors: Mapping[str, Tensor], source: str
) -> TaskModule:
    """Return a task head that holds exactly these tensors."""
    return filled(lambda: task_head(config, hidden_size), tensors, f"{source}: the task head")


def _rows(fields: Mapping[str, Any], layout: Layout, encoder: EncoderConfig) -> dict[str, Any]:
    """Return the pooling before a sequence classification, and the first token of a mean."""
    pooling = layout.pooling or fields.get("classifier_pooling", "cls")
    if layout.pooling is None and pooling not in ("cls", "mean"):
        raise ConfigError(
            f"config.json: the task head's pooling {pooling!r} is not supported; cls and mean are"
        )
    patches = encoder.embeddings.patches
    of_patches = patches is not None and pooling in ("mean", "cls_mean")
    first = {"first_token": len(patches.special_tokens)} if patches and of_patches else {}
    return {"pooling": pooling, **first}


def _layout(folder: Path, kind: TaskKind, model_type: str) -> Layout:
    names = architectures(transformer_folder(folder))
    if model_type == "deit" and any(name.endswith(WITH_TEACHER) for name in names):
        return WITH_TEACHER_LAYOUT
    known = LAYOUTS[kind]
    if model_type not in known:
        task = kind.replace("_", " ")
        raise ConfigError(f"{task} is supported for {', '.join(known)}; not for {model_type}")
    return known[model_type]


def _transform(
    fields: Mapping[str, Any], layout: Layout, encoder: EncoderConfig
) -> Transform | None:
    if layout.dense is None:
        return None
    activation = layout.activation
    if activation.startswith(":"):
        _, key, default = activation.split(":")
        activation = fields.get(key, default)
    eps = layout.norm_eps or encoder.layer_norm_eps
    smaller = layout.smaller and encoder.embeddings.size
    return Transform.model_validate(
        {
            "size": smaller or encoder.hidden_size,
            "bias": fields.get(layout.dense_bias, False) if layout.dense_bias else True,
            "activation": activation,
            "norm_eps": eps if layout.norm else None,
            "norm_bias": encoder.layer.norm_bias,
        }
    )


def _tensors(folder: Path, layout: Layout) -> dict[str, Tensor]:
    """Return a checkpoint's tensors of the task head, by the module's keys."""
    checkpoint_keys = {
        "output": layout.output,
        "second": layout.second,
        "transform.dense": layout.dense,
        "transform.norm": layout.norm,
    }
    wanted = {
        f"{place}.{parameter}": f"{own}.{parameter}"
        for own, place in checkpoint_keys.items()
        for parameter in ("weight", "bias")
        if place is not None
    }
    if layout.bias is not None:
        wanted[layout.bias] = "output.bias"
    stored = folder_tensors(folder, lambda key: _own_name(key, wanted) is not None)
    tensors = {str(_own_name(key, wanted)): tensor for key, tensor in stored.items()}
    return _averaged(tensors) if layout.second else tensors


def _averaged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return one map of two tokens whose logits are the mean of the maps of each token."""
    missing = {"output.weight", "output.bias", "second.weight", "second.bias"} - tensors.keys()
    if missing:
        raise CheckpointError(f"the task head's {min(missing)} is missing")
    both = [tensors[f"{place}.weight"].float() for place in ("output", "second")]
    if both[0].shape != both[1].shape:
        raise CheckpointError("the task head's two classifiers differ in their shapes")
    bias = (tensors["output.bias"].float() + tensors["second.bias"].float()) / 2
    return {"output.weight": torch.cat(both, dim=1) / 2, "output.bias": bias}


def _own_name(key: str, wanted: Mapping[str, str]) -> str | None:
    """Return the module's key of a checkpoint's, which may have prefixes; None if it has none."""
    key = re.sub(r"(gamma|beta)$", lambda match: _OLD_NAMES[match[0]], key)
    for place, own in wanted.items():
        if key == place or key.endswith(f".{place}"):
            return own
    return None
