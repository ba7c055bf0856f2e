"""Token vectors and token weights of bge-m3 and its kind, from two linear maps beside the encoder.

Format: FlagEmbedding's `colbert_linear.pt` and `sparse_linear.pt`, pickled state dicts of a Linear.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from torch import Tensor

from model.artifact.modules import transformer_folder
from model.artifact.weight_files import HYBRID_HEADS
from model.config.encoder import EncoderConfig
from model.errors import CheckpointError
from model.numerics.late_interaction import LateInteraction
from model.numerics.task_head import TaskConfig
from model.numerics.vector_modules import Dense, Normalize
from model.pickles import pickled_tensors
from model.tasks.checkpoint import build_task_head
from model.tasks.head import TaskModule
from model.tokenization.tokenizer import special_token

_UNUSED = ("cls_token", "eos_token", "pad_token", "unk_token")
"""Special tokens without a weight in sparse vectors."""


def load_hybrid(checkpoint: Path, tokenizer: Tokenizer, encoder: EncoderConfig) -> TaskModule:
    """Load the maps of token vectors and token weights, in float32, evaluation mode.

    The first token, `<s>`, has no token vector; its state is the dense vector.
    """
    colbert, sparse = (_linear(checkpoint / name) for name in HYBRID_HEADS)
    features = len(colbert["weight"])
    dense = Dense(
        in_features=encoder.hidden_size, out_features=features, bias=True, activation="Identity"
    )
    config = TaskConfig(
        kind="hybrid",
        outputs=features + 1,
        pooling="none",
        late=LateInteraction(modules=(dense, Normalize()), first_token=1),
        unused_ids=_unused_ids(transformer_folder(checkpoint), tokenizer),
    )
    tensors = {f"steps.0.linear.{name}": tensor for name, tensor in colbert.items()}
    tensors |= {f"weight.{name}": tensor for name, tensor in sparse.items()}
    return build_task_head(config, encoder.hidden_size, tensors, str(checkpoint))


def _linear(path: Path) -> dict[str, Tensor]:
    """Return `weight` and `bias` of a Linear."""
    if not path.is_file():
        other = next(name for name in HYBRID_HEADS if name != path.name)
        raise CheckpointError(
            f"{path} is missing, beside {other}: fetch it as well, or move {other} away to serve "
            "the dense vectors alone"
        )
    tensors = pickled_tensors(path)
    if tensors.keys() != {"weight", "bias"} or tensors["weight"].ndim != 2:
        raise CheckpointError(f"{path} does not hold weight and bias of one linear map")
    return tensors


def _unused_ids(folder: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    words = [special_token(folder, name) for name in _UNUSED]
    ids = {tokenizer.token_to_id(word) for word in words if word is not None}
    return tuple(sorted(index for index in ids if index is not None))
