"""Layouts of task heads in checkpoints, by kind and family, with transformers' keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from model.numerics.task_head import TaskKind


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
    last: bool = False
    """Whether sequences are classified by their last token, in place of `classifier_pooling`."""
    bias: str | None = None
    """Key of the last map's bias in checkpoints that store it elsewhere."""
    norm_eps: float | None = None
    """Epsilon of the norm; the encoder's when None."""
    smaller: bool = False
    """Whether `dense` maps to the size of the embeddings."""
    second: str | None = None
    """Key of a map of the second token. The logits of `output` and of this map are averaged."""
    patches: bool = False
    """Whether the mean of a picture's patches is classified."""
    class_token: bool = False
    """Whether the class token is classified with the mean of the patches, before it."""


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
_PATCHES = Layout(output="classifier", patches=True)
_LAST = Layout(output="score", output_bias=False, last=True)

WITH_TEACHER_LAYOUT = Layout(output="cls_classifier", second="distillation_classifier")
"""Layout of DeiT with a distilled classifier."""
WORD_LOGITS = frozenset({"llama", "mistral", "qwen2", "qwen3"})
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
        **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _LAST),
        **dict.fromkeys(("deit", "vit"), _CLASSIFIER),
        **dict.fromkeys(("clip_vision_model", "siglip_vision_model"), _PATCHES),
        **dict.fromkeys(("dinov2", "dinov2_with_registers"), replace(_PATCHES, class_token=True)),
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
