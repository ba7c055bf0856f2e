"""Token-vector modules of a late-interaction model, from its checkpoint folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer
from torch import Tensor

from model.checkpoint import read_tensors
from model.config.encoder import EncoderConfig
from model.errors import CheckpointError, ConfigError
from model.export.module_tensors import module_tensors
from model.numerics.late_interaction import LateInteraction, QueryExpansion
from model.numerics.task_head import TaskConfig
from model.numerics.vector_modules import tensor_name
from model.sources.files import listed_modules, transformer_folder, weight_files
from model.sources.task_files import Expansion, LateFiles, read_late_files
from model.tasks.checkpoint import build_task_head
from model.tasks.head import TaskModule
from model.tokenization.tokenizer import special_tokens

STANFORD_WEIGHT = "linear.weight"
"""Key of the projection that Stanford's ColBERT stores beside its encoder."""
_HIDES_PADDING = ("deberta-v2",)
"""Model types for which transformers computes nothing for tokens masked as keys."""


def load_token_vectors(
    checkpoint: Path, tokenizer: Tokenizer, encoder: EncoderConfig
) -> TaskModule:
    """Load the token-vector modules of a late-interaction model, in float32, evaluation mode."""
    files = read_late_files(checkpoint)
    late = _with_ids(files, tokenizer, transformer_folder(checkpoint), encoder)
    size = late.vector_size(encoder.hidden_size)
    if size is None:
        raise ConfigError(f"{checkpoint}: the sizes of its modules do not fit one another")
    if late.unseen and encoder.model_type in _HIDES_PADDING:
        raise ConfigError(
            f"{checkpoint}: query expansion without attention to it is not supported for "
            f"{encoder.model_type}"
        )
    if late.expansion and late.expansion.length > encoder.max_position_embeddings:
        raise ConfigError(
            f"{checkpoint}: queries of {late.expansion.length} tokens are longer than the model's "
            f"{encoder.max_position_embeddings} positions"
        )
    config = TaskConfig(kind="late_interaction", outputs=size, pooling="none", late=late)
    tensors = {f"steps.{name}": tensor for name, tensor in _tensors(checkpoint, late).items()}
    return build_task_head(config, encoder.hidden_size, tensors, str(checkpoint))


def _with_ids(
    files: LateFiles, tokenizer: Tokenizer, folder: Path, encoder: EncoderConfig
) -> LateInteraction:
    """Return the settings with words as ids; words that are not one known token are skipped."""
    special = special_tokens(folder)
    unknown = special.get("unk_token")
    unknown_id = None if unknown is None else tokenizer.token_to_id(unknown)
    word_ids = {word: tokenizer.token_to_id(word) for word in files.skipped}
    skipped = {
        index
        for word, index in word_ids.items()
        if index is not None and (index != unknown_id or word == unknown)
    }
    length, expansion = files.query_length, None
    if files.expansion is not None:
        expansion = _expansion(files.expansion, tokenizer, special, folder)
        if length is not None and length < expansion.length:
            raise ConfigError(
                f"{folder}: query_length {length} is less than query_expansion's {expansion.length}"
            )
        length = expansion.length if expansion.fixed else length
    longest = encoder.max_position_embeddings
    return LateInteraction(
        modules=files.modules,
        query_tokens=None if length is None else min(length, longest),
        document_tokens=files.document_length and min(files.document_length, longest),
        expansion=expansion,
        skipped_ids=tuple(sorted(skipped)),
        skipped_in=files.skipped_in,
    )


def _expansion(
    files: Expansion, tokenizer: Tokenizer, special: Mapping[str, str], folder: Path
) -> QueryExpansion:
    """Return the expansion with its named token, else the mask token, else the end token."""
    named = (files.token, special.get("mask_token"), special.get("eos_token"))
    token = next((token for token in named if token is not None), None)
    token_id = None if token is None else tokenizer.token_to_id(token)
    if token_id is None:
        raise ConfigError(
            f"{folder}: query expansion needs a token that the tokenizer has"
            + (f", not {token!r}" if token else "")
        )
    return QueryExpansion(
        token_id=token_id,
        length=files.length,
        fixed=files.strategy == "fixed",
        attended=files.attend,
    )


def _tensors(checkpoint: Path, late: LateInteraction) -> dict[str, Tensor]:
    if listed_modules(checkpoint) is not None:
        return module_tensors(checkpoint, late.modules)
    for path in weight_files(checkpoint):
        tensors = read_tensors(path, lambda key: key == STANFORD_WEIGHT)
        if tensors:
            return {tensor_name(0, STANFORD_WEIGHT): tensors[STANFORD_WEIGHT]}
    raise CheckpointError(f"{checkpoint} holds no {STANFORD_WEIGHT}, ColBERT's projection")
