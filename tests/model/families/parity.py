"""Comparison of a family's random checkpoints with transformers, which writes them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import PreTrainedModel

from model.attention.weights import Heads, attention_weights, some_heads
from model.checkpoint import load_checkpoint
from model.encoder.encoder import Encoder, EncoderOutput
from model.numerics.batch import pack
from model.packing import PackedBatch
from tests.model.packed_vectors import assert_packed_vectors_equal

VOCABULARY = 97
LENGTHS = (1, 5, 17, 33)
Texts = list[tuple[torch.Tensor, torch.Tensor]]
"""Token ids and segments of each text."""
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 48,
}


def model_of(family: str, *, task: str = "Model", **fields: Any) -> Any:
    """Return transformers' model of a family and a task, by the names of its classes."""
    config = getattr(transformers, f"{family}Config")(**fields)
    return getattr(transformers, family + task)(config)


def randomized(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """Return the model with weights so large that its attention is far from even."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:  # transformers' own are random, and differ with each run
                parameter.copy_(0.3 * noise)
            else:
                parameter.add_(0.2 * noise)
    model.set_attn_implementation("eager")
    return model.eval()


def saved(model: PreTrainedModel, folder: Path) -> Path:
    """Write a checkpoint of the randomized model."""
    randomized(model).save_pretrained(folder)
    return folder


def texts_of(encoder: Encoder, lengths: Sequence[int]) -> list[torch.Tensor]:
    """Return random token ids, with a padding token inside one text."""
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(3, VOCABULARY, (n,), generator=generator) for n in lengths]
    texts[2][4] = encoder.config.pad_token_id
    return texts


def with_segments(
    reference: PreTrainedModel, encoder: Encoder, texts: Sequence[torch.Tensor]
) -> Texts:
    """Return texts with a random segment of each token, if both models read segments."""
    reads = "token_type_ids" in inspect.signature(reference.forward).parameters
    count = max(1, encoder.config.type_vocab_size) if reads else 1
    generator = torch.Generator().manual_seed(2)
    return [(ids, torch.randint(count, ids.shape, generator=generator)) for ids in texts]


def compare(
    reference: PreTrainedModel, encoder: Encoder, texts: Texts
) -> tuple[float, list[NDArray[np.float32]]]:
    """Compare states within 1e-5 of the largest value, maps within 5e-6; one head like all.

    Texts are packed for our model, and single for transformers', in float32 and eager. The result
    is the largest weight of long texts, and transformers' last states of each text.
    """
    start, sharpest, last_states = 0, 0.0, []
    with torch.no_grad():
        ours = encoder(PackedBatch.of(pack(texts)), output_attentions=True)
        for row, (ids, segments) in enumerate(texts):
            given = {"token_type_ids": segments[None]} if segments.any() else {}
            theirs = reference(
                input_ids=ids[None],
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                output_hidden_states=True,
                output_attentions=True,
                **given,
            )
            rows = slice(start, start := start + len(ids))
            last_states.append(theirs[0][0].numpy())
            sharp = assert_row_equal(encoder, ours, theirs, row, rows)
            sharpest = max(sharpest, sharp if len(ids) > 16 else 0.0)
    return sharpest, last_states


def assert_equal_to(
    reference: PreTrainedModel, folder: Path, lengths: Sequence[int] = LENGTHS
) -> Encoder:
    """Compare a random checkpoint with its reference, also with masked tokens and as a graph."""
    encoder = load_checkpoint(saved(reference, folder))
    texts = with_segments(reference, encoder, texts_of(encoder, lengths))
    sharpest, last_states = compare(reference, encoder, texts)
    assert sharpest > 0.4, "attention is nearly even, so that no fault of it would show"
    assert_masked_tokens_equal(reference, encoder, texts[2][0])
    assert_packed_vectors_equal(encoder, pack(texts), last_states)
    return encoder


def assert_row_equal(
    encoder: Encoder, ours: EncoderOutput, theirs: Any, row: int, rows: slice
) -> float:
    """Compare a text's or picture's tokens with the reference's alone; return its largest weight.

    The last state is the reference's result, after its final norm: CLIP and SigLIP normalise after
    the last of transformers' `hidden_states`.
    """
    states = (*theirs.hidden_states[:-1], theirs[0])
    for expected, found in zip(states, ours.hidden_states, strict=True):
        atol = 1e-5 * expected.abs().max().item()
        torch.testing.assert_close(found[rows], expected[0], atol=atol, rtol=0)
    count, heads = rows.stop - rows.start, encoder.config.num_attention_heads
    for layer, (expected, every_head) in enumerate(
        zip(theirs.attentions, encoder.head_parameters(), strict=True)
    ):
        found = ours.attentions[layer][row, :, :count, :count]
        torch.testing.assert_close(found, expected[0], atol=5e-6, rtol=0)
        entering = ours.hidden_states[layer][None, rows]
        two = Heads.from_parameters(some_heads(every_head, [1, 0], heads), encoder.rule)
        some = attention_weights(two, entering, entering)[0]
        torch.testing.assert_close(some, expected[0, [1, 0]], atol=5e-6, rtol=0)
    return max(maps.max().item() for maps in theirs.attentions)


def assert_masked_tokens_equal(
    reference: PreTrainedModel, encoder: Encoder, text: torch.Tensor
) -> None:
    """Mask each token of a text in turn, in one batch, as with transformers' `attention_mask` 0."""
    places = (0, 4, 5, len(text) - 1)
    unseen: list[tuple[int, ...]] = [(), *((place,) for place in places), (1, 7)]
    batch = pack([(text, [0] * len(text))] * len(unseen), unseen)
    mask = torch.ones(len(unseen), len(text), dtype=torch.long)
    for row, hidden in zip(mask, unseen, strict=True):
        row[list(hidden)] = 0
    with torch.no_grad():
        ours = encoder(PackedBatch.of(batch)).hidden_states[-1].reshape(*mask.shape, -1)
        theirs = reference(input_ids=text.repeat(len(unseen), 1), attention_mask=mask)[0]
    seen = mask.bool()
    atol = 1e-5 * theirs.abs().max().item()
    torch.testing.assert_close(ours[seen], theirs[seen], atol=atol, rtol=0)
    assert (ours[1:] - ours[0])[seen[1:]].abs().max() > 100 * atol
