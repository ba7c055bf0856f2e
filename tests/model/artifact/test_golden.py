"""Golden texts: their number, their file, and their tensors against transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModel

from model.artifact.golden import GoldenText, golden_inputs, read_golden, save_golden
from model.artifact.manifest import GOLDEN, TOKENIZER, Artifact
from model.errors import ArtifactError
from model.numerics.targets import TargetTensors


@pytest.fixture
def artifact(exported: Callable[..., Artifact], small_checkpoint: Path) -> Artifact:
    return exported(small_checkpoint, "small")


def test_golden_tensors_are_transformers(artifact: Artifact, small_checkpoint: Path) -> None:
    model = AutoModel.from_pretrained(
        small_checkpoint, attn_implementation="eager", dtype=torch.float32
    ).eval()
    texts = read_golden(artifact)
    assert len(texts) == 3
    for text in texts:
        with torch.inference_mode():
            found = model(
                input_ids=torch.from_numpy(text.input_ids)[None],
                token_type_ids=torch.from_numpy(text.segment_ids)[None],
                output_hidden_states=True,
                output_attentions=True,
            )
        hidden = torch.cat(found.hidden_states).numpy()
        np.testing.assert_allclose(text.hidden, hidden, atol=1e-4)
        np.testing.assert_allclose(text.maps, torch.cat(found.attentions).numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("limits", "tokens"),
    [
        ({}, [15, 12, 24]),
        ({"type_vocab_size": 1}, [15, 24]),
        ({"max_position_embeddings": 13}, [12, 13]),
        ({"max_position_embeddings": 5}, [5]),
    ],
    ids=str,
)
def test_texts_that_do_not_fit_are_left_out(
    artifact: Artifact, limits: dict[str, int], tokens: list[int]
) -> None:
    """The words and punctuation marks of each text, counted by hand, plus its special tokens."""
    tokenizer = Tokenizer.from_file(str(artifact.path(TOKENIZER)))
    config = artifact.manifest.config.model_copy(update=limits)
    texts = list(golden_inputs(tokenizer, config))
    assert [len(ids) for ids, _ in texts] == tokens
    for ids, segments in texts:
        assert ids.shape == segments.shape
        assert ids.max() < config.vocab_size
        assert segments.max() < config.type_vocab_size


def golden_text(tokens: int, seed: int) -> GoldenText:
    """Return random arrays with L = 2, N = 3, H = 4; the maps are not contiguous."""
    rng = np.random.default_rng(seed)
    return GoldenText(
        rng.integers(0, 9, tokens),
        np.zeros(tokens, np.int64),
        rng.standard_normal((3, tokens, 4), np.float32),
        rng.random((2, 3, tokens, tokens), np.float32).swapaxes(2, 3),
    )


def test_texts_are_read_in_the_order_in_which_they_were_saved(
    artifact: Artifact, tmp_path: Path
) -> None:
    texts = [golden_text(3 + seed % 5, seed) for seed in range(12)]
    rng = np.random.default_rng(0)
    shapes = ((3, 5, 4), (2, 5, 4), (2, 2, 5, 5), (2, 2, 5, 7), (5,))
    target = TargetTensors(*(rng.random(shape, np.float32) for shape in shapes))
    texts[7] = dataclasses.replace(texts[7], labels=np.arange(5), target=target)
    save_golden(tmp_path / GOLDEN, texts)
    read = read_golden(dataclasses.replace(artifact, folder=tmp_path))
    assert len(read) == len(texts)
    for found, saved in zip(read, texts, strict=True):
        assert (found.target is None) == (saved.target is None)
        both = [vars(each) | (vars(each.target) if each.target else {}) for each in (found, saved)]
        for name in both[1].keys() - {"target"}:
            np.testing.assert_array_equal(both[0][name], both[1][name], strict=True)


def test_a_file_that_cannot_be_read_is_named(artifact: Artifact, tmp_path: Path) -> None:
    (tmp_path / GOLDEN).write_bytes(b"not safetensors")
    with pytest.raises(ArtifactError, match=GOLDEN):
        read_golden(dataclasses.replace(artifact, folder=tmp_path))
