"""Checks that a sentence-transformers model makes one vector per text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model.artifact.modules import STATIC_EMBEDDING
from model.errors import ConfigError
from model.families.pictures import PICTURE_TYPES
from model.numerics.pooling import PoolingName

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
