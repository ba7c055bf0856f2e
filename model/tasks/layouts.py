"""Where the task models of each family keep their task heads, as transformers names the keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from model.artifact.task import TaskKind


@dataclass(frozen=True)
class Layout:
    """Keys of a task head in a checkpoint, without the family's prefix, and its activation."""

    output: str
    """Of the last map."""
    dense: str | None = None
    """Of the map before it."""
    activation: str = ""
    """Function after `dense`; where it starts with a colon, the key of `config.json` that names it,
    and after another the function where the key is absent."""
    norm: str | None = None
    """Of the norm after the activation."""
    dense_bias: str = ""
    """Key of `config.json` that has `dense` have a bias; it always has one where empty."""
    output_bias: str = ""
    """The same of `output`, which has one where the key is absent."""
    bias: str | None = None
    """Of the last map's bias in checkpoints that keep it elsewhere."""
    norm_eps: float | None = None
    """That of the encoder's norms when None."""
    smaller: bool = False
    """Whether `dense` leads to the size of the embeddings."""


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

LAYOUTS: Mapping[TaskKind, Mapping[str, Layout]] = {
    "sequence_classification": {
        "albert": Layout(output="classifier", dense="pooler", activation="tanh"),
        "bert": Layout(output="classifier", dense="pooler.dense", activation="tanh"),
        "camembert": _ROBERTA,
        "deberta-v2": Layout(
            output="classifier", dense="pooler.dense", activation=":pooler_hidden_act:gelu"
        ),
        "distilbert": Layout(output="classifier", dense="pre_classifier", activation="relu"),
        "electra": Layout(
            output="classifier.out_proj", dense="classifier.dense", activation="gelu"
        ),
        "modernbert": _MODERNBERT,
        "mpnet": _ROBERTA,
        "roberta": _ROBERTA,
        "xlm-roberta": _ROBERTA,
    },
    "token_classification": {
        **dict.fromkeys(
            (
                *("albert", "bert", "camembert", "deberta-v2", "distilbert", "electra", "mpnet"),
                *("roberta", "xlm-roberta"),
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
        "modernbert": Layout(
            output="decoder",
            dense="head.dense",
            activation=":classifier_activation:gelu",
            norm="head.norm",
            dense_bias="classifier_bias",
            output_bias="decoder_bias",
        ),
        "mpnet": _LM_HEAD,
        "roberta": _LM_HEAD,
        "xlm-roberta": _LM_HEAD,
    },
}
"""By kind of task head and `model_type`."""
