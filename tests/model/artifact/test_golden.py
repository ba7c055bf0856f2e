"""Golden texts: their number, their file, and their tensors against transformers."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModel, XLMRobertaTokenizer

from model.artifact.decomposition import (
    APPLIES,
    VALUE_BIAS,
    layer_keys,
    layer_shapes,
    value_keys,
    value_shapes,
)
from model.artifact.golden import GoldenText, golden_inputs, read_golden, save_golden
from model.artifact.manifest import GOLDEN, TOKENIZER, Artifact
from model.checkpoint import load_checkpoint
from model.encoder.encoder import Encoder
from model.numerics.comparison import TargetTensors
from model.tokenization.vocabulary import read_tokenizer
from tests.model.decomposition.test_encoder import MODELS
from tests.model.families.parity import model_of, saved
from tests.model.tokenizer_folders import CLASSES, LINES, write_tokenizer_folder


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
    for found, text in zip(read, texts, strict=True):
        assert (found.target is None) == (text.target is None)
        both = [vars(each) | (vars(each.target) if each.target else {}) for each in (found, text)]
        for name in both[1].keys() - {"target"}:
            np.testing.assert_array_equal(both[0][name], both[1][name], strict=True)


CHARACTERS = [chr(0x4E00 + i) for i in range(100)]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


@pytest.fixture
def ambiguous() -> Tokenizer:
    """Return pieces of each character once and twice, and of a word before them."""
    pieces = ["▁w", *CHARACTERS, *(2 * character for character in CHARACTERS)]
    vocabulary = [(token, 0.0) for token in SPECIAL]
    numbers = random.Random(0)
    vocabulary += [(piece, numbers.uniform(-16, -9)) for piece in pieces]
    tokenizer = XLMRobertaTokenizer(vocab=vocabulary)._tokenizer
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


def ties(tokenizer: Tokenizer) -> list[list[int]]:
    texts = [
        word + number * character
        for word in ("", "w")
        for character in CHARACTERS
        for number in (3, 7)
    ]
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def vocabulary(tokenizer: Tokenizer) -> list[list[float]]:
    content: list[list[float]] = json.loads(tokenizer.to_str())["model"]["vocab"]
    return content


def test_scores_are_read_as_they_were_written(ambiguous: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    ambiguous.save(str(path))
    assert vocabulary(read_tokenizer(path)) == vocabulary(ambiguous)
    assert ties(read_tokenizer(path)) == ties(ambiguous)
    assert vocabulary(Tokenizer.from_file(str(path))) != vocabulary(ambiguous)
    assert ties(Tokenizer.from_file(str(path))) != ties(ambiguous)


@pytest.mark.parametrize("unknown", [None, 0])
def test_the_rest_of_the_model_is_kept(tmp_path: Path, unknown: int | None) -> None:
    pieces = [("<unk>", 0.0), ("a", -1.0), ("<0x62>", -2.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unknown, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert read_tokenizer(tmp_path / "tokenizer.json").to_str() == tokenizer.to_str()


@pytest.mark.parametrize("name", CLASSES)
def test_any_class_reads_as_it_was_saved(tmp_path: Path, name: str) -> None:
    path = write_tokenizer_folder(tmp_path, name) / "tokenizer.json"
    found, expected = read_tokenizer(path), Tokenizer.from_file(str(path))
    assert type(found.model) is type(expected.model)
    assert found.get_vocab() == expected.get_vocab()
    assert all(found.encode(line).ids for line in LINES[20:40])


ELSEWHERE = ("attention.query", "attention.key", "attention.position_", "attention.score")
"""Parameters that a layer's maps depend on, which are among the heads' parameters."""


@pytest.mark.parametrize("name", ["albert", "bert", "modernbert", "modernbert-biases", "gemma3"])
def test_names_and_shapes_are_those_of_the_encoder(name: str, tmp_path: Path) -> None:
    family, fields = MODELS[name]
    encoder: Encoder = load_checkpoint(saved(model_of(family, **fields), tmp_path))
    named = dict(encoder.named_parameters())
    used: set[str] = set()
    for layer in range(encoder.config.num_hidden_layers):
        for shapes, keys in (
            (layer_shapes(encoder.config), layer_keys(encoder.config, layer)),
            (value_shapes(encoder.config), value_keys(encoder.config, layer)),
        ):
            assert {name: tuple(named[key].shape) for name, key in keys.items()} == {
                name: shapes[name] for name in keys
            }
            assert shapes.keys() - keys.keys() <= {APPLIES, VALUE_BIAS}
            used |= set(keys.values())
    ours = {
        key
        for key in named
        if key.startswith("layers.") and not key.split(".", 2)[2].startswith(ELSEWHERE)
    }
    assert used == ours
    if encoder.config.layer.order != "post_norm":
        last = value_keys(encoder.config, encoder.config.num_hidden_layers)
        assert last["attention_norm.weight"] == "final_norm.weight"
