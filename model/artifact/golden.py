"""Golden texts: their hidden states and maps from PyTorch, kept in the artifact. Without torch.

An engine must reproduce them before it serves.
Notation: S tokens of a text, H hidden size, L layers, N heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from model.artifact.integrity import reading, writing
from model.artifact.manifest import GOLDEN, Artifact
from model.config.encoder import EncoderConfig
from model.numerics.comparison import TargetTensors
from model.tokenization.vocabulary import model_ids

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]

TEXTS: tuple[tuple[str, str | None], ...] = (
    ("The animal didn't cross the street because it was too tired", None),
    ("Which of the words", "does it stand for?"),
)
RANDOM_TOKENS = 24
"""Length of a further golden text of random ids."""


@dataclass(frozen=True)
class GoldenText:
    """Golden text and its tensors from PyTorch, in float32."""

    input_ids: Ids
    """`[S]`."""
    segment_ids: Ids
    """`[S]`."""
    hidden: Floats
    """`[L + 1, S, H]`."""
    maps: Floats
    """`[L, N, S, S]`."""
    pixels: Floats | None = None
    """`[S, F]`, pixels of a picture's tokens; None for a text."""
    scores: Floats | None = None
    """Outputs of the task head, `[C]`, `[V]` or `[S, C]`; None without a task head."""
    labels: Ids | None = None
    """`[T]`, labels of the target; None without a decoder."""
    target: TargetTensors | None = None
    """Tensors of the decoder for the target; None without a decoder."""


def golden_inputs(tokenizer: Tokenizer, config: EncoderConfig) -> Iterator[tuple[Ids, Ids]]:
    """Yield token ids and segment ids of each text; skip texts that the model cannot encode."""
    for text, other in TEXTS:
        encoding = tokenizer.encode(text, other)
        segment_ids = np.array(encoding.type_ids, np.int64)
        fits = 0 < len(segment_ids) <= config.max_position_embeddings
        if config.text_segments > 1:  # 1 for single texts, 0 for the others
            segment_ids[:] = other is None
        if fits and config.knows_segment(int(segment_ids.max())):
            yield np.array(model_ids(tokenizer, encoding), np.int64), segment_ids
    length = min(RANDOM_TOKENS, config.max_position_embeddings)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, length)
    yield ids, np.zeros_like(ids)


def save_golden(path: Path, texts: Sequence[GoldenText]) -> None:
    """Write the texts, in order."""
    tensors = {}
    for index, text in enumerate(texts):
        named = {name: tensor for name, tensor in vars(text).items() if name != "target"}
        if text.target:
            named |= {f"target_{name}": tensor for name, tensor in vars(text.target).items()}
        for name, tensor in named.items():
            if tensor is not None:
                tensors[f"{name}.{index}"] = np.ascontiguousarray(tensor)
    with writing(path):
        save_file(dict(sorted(tensors.items())), path)


def read_golden(artifact: Artifact) -> list[GoldenText]:
    """Return the texts of an artifact, in order.

    Raises:
        ArtifactError: the file cannot be read.

    """
    names, of_target = ([field.name for field in fields(of)] for of in (GoldenText, TargetTensors))
    names.remove("target")
    texts = []
    with reading(path := artifact.path(GOLDEN)):
        tensors: dict[str, Any] = load_file(path)
        for index in range(sum(name.startswith("input_ids.") for name in tensors)):
            named: dict[str, Any] = {name: tensors.get(f"{name}.{index}") for name in names}
            text = GoldenText(**named)
            if text.labels is not None:
                own = {name: tensors[f"target_{name}.{index}"] for name in of_target}
                text = replace(text, target=TargetTensors(**own))
            texts.append(text)
    return texts
