"""Packed batches, targets, low-rank segments and rows of task heads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model.config.decoder import DecoderConfig
from model.config.encoder import AdapterLayout
from model.numerics.batch import PADDING, Batch, coarser, dummies, pack, padded, widen
from model.numerics.comparison import Key, TargetTensors, random_labels
from model.numerics.pooling import TextPooling
from model.numerics.task_head import SLICE_TOKENS, Floats, TaskConfig, rows_of, text_scores
from model.runtimes.host_graphs import adapted
from tests.model.attention.test_self_attention import config_of

Text = tuple[list[int], list[int]]
LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=12)


def random_texts(lengths: list[int]) -> list[Text]:
    rng = np.random.default_rng(lengths)
    return [(rng.integers(0, 99, n).tolist(), rng.integers(0, 2, n).tolist()) for n in lengths]


def test_pixels_lie_end_to_end_beside_the_ids() -> None:
    pixels = [np.full((3, 2), 1, np.float32), np.full((1, 2), 2, np.float32)]
    batch = pack([([1, 0, 0], [0, 0, 0]), ([1], [0])], pixels=pixels)
    assert batch.pixels is not None
    assert batch.pixels.tolist() == [[1, 1]] * 3 + [[2, 2]]
    assert batch.inputs[-1] is batch.pixels
    assert widen(batch, 3, 8).pixels is batch.pixels
    assert len(dummies([2, 1], 0).inputs) == 5
    assert dummies([2, 1], 4).inputs[-1].shape == (3, 4)


def test_tokens_that_no_token_attends_to() -> None:
    texts = [([5, 6, 7], [0, 0, 0]), ([8], [0]), ([9, 5], [0, 0])]
    batch = pack(texts, [(1, 2), (), (1,)])
    assert batch.padded_index.tolist() == [[0, -2, -3], [3, -1, -1], [4, -6, -1]]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 6]
    plain = pack(texts)
    assert plain.padded_index.tolist() == pack(texts, [()] * 3).padded_index.tolist()
    for name in ("input_ids", "token_type_ids", "position_ids", "packed_index"):
        assert getattr(batch, name).tolist() == getattr(plain, name).tolist()
    assert widen(batch, 3, 4).padded_index[0].tolist() == [0, -2, -3, -1]


def test_the_first_token_of_all_may_be_one_that_no_token_attends_to() -> None:
    batch = pack([([5, 6, 7], [0, 0, 0]), ([8, 9], [0, 0])], [(0,), (0,)])
    assert batch.padded_index.tolist() == [[-1, 1, 2], [-4, 4, -1]]
    assert batch.cu_seqlens.tolist() == [0, 3, 5]


@settings(deadline=None)
@given(LENGTHS)
@example([1])
@example([1, 1, 1])
@example([7])
@example([1, 20, 1])
def test_the_grid_holds_each_text_in_its_row(lengths: list[int]) -> None:
    texts = random_texts(lengths)
    batch = pack(texts)
    assert batch.padded_index.shape == (len(lengths), max(lengths))
    assert batch.cu_seqlens.tolist() == [0, *np.cumsum(lengths)]
    flat = batch.padded_index.flatten()
    assert batch.packed_index.tolist() == np.flatnonzero(flat != PADDING).tolist()
    assert flat[batch.packed_index].tolist() == list(range(sum(lengths)))
    for row, (ids, segments) in zip(batch.padded_index, texts, strict=True):
        n = len(ids)
        assert batch.input_ids[row[:n]].tolist() == ids
        assert batch.token_type_ids[row[:n]].tolist() == segments
        assert batch.position_ids[row[:n]].tolist() == list(range(n))
        assert (row[n:] == PADDING).all()


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint32, None])
def test_lists_and_arrays_give_the_same_int64(dtype: type | None) -> None:
    texts = random_texts([4, 1, 9])
    given_texts = [tuple(np.array(part, dtype) for part in text) for text in texts]
    expected, found = pack(texts), pack(given_texts if dtype else texts)
    for one, other in zip(found.inputs, expected.inputs, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
        assert one.dtype == np.int64


def test_the_inputs_are_every_array_in_the_encoders_order() -> None:
    batch = pack(random_texts([3, 5]))
    names = ("input_ids", "token_type_ids", "position_ids", "padded_index", "packed_index")
    assert tuple(Batch.__dataclass_fields__) == (*names, "pixels")
    for name, array in zip(names, batch.inputs, strict=True):
        assert array is getattr(batch, name)


@given(LENGTHS, st.integers(0, 3), st.integers(0, 9))
def test_a_wider_grid_holds_the_same_tokens(lengths: list[int], rows: int, columns: int) -> None:
    batch = pack(random_texts(lengths))
    texts, longest = batch.padded_index.shape
    wide = widen(batch, texts + rows, longest + columns)
    assert wide.padded_index.shape == (texts + rows, longest + columns)
    assert np.array_equal(wide.padded_index[:texts, :longest], batch.padded_index)
    assert (wide.padded_index != PADDING).sum() == sum(lengths)
    assert np.array_equal(wide.padded_index.reshape(-1)[wide.packed_index], np.arange(sum(lengths)))
    for name in ("input_ids", "token_type_ids", "position_ids"):
        assert getattr(wide, name) is getattr(batch, name)


def test_a_padded_grid_has_the_names_of_transformers_inputs() -> None:
    pixels = [np.full((3, 2), 1, np.float32), np.full((1, 2), 2, np.float32)]
    batch = pack([([7, 8, 9], [0, 1, 1]), ([5], [1])], [(1,), ()], pixels)
    assert {name: array.tolist() for name, array in padded(batch, 4).items()} == {
        "input_ids": [[7, 8, 9], [5, 4, 4]],
        "token_type_ids": [[0, 1, 1], [1, 0, 0]],
        "position_ids": [[0, 1, 2], [0, 0, 0]],
        "attention_mask": [[1, 0, 1], [1, 0, 0]],
        "pixels": [[[1, 1], [1, 1], [1, 1]], [[2, 2], [0, 0], [0, 0]]],
    }
    assert "pixels" not in padded(pack([([7], [0])]), 4)


@given(st.integers(1, 10**6))
def test_a_coarser_number_is_at_most_an_eighth_more(n: int) -> None:
    found = coarser(n)
    assert n <= found <= n * 9 / 8
    assert coarser(found) == found
    assert coarser(n + 1) >= found


@given(st.integers(1, 10**6), st.sampled_from([2, 8, 64]))
def test_a_coarser_number_has_a_least_step(n: int, step: int) -> None:
    found = coarser(n, step)
    assert found % step == 0
    assert n <= found <= max(n * 9 / 8, n + step - 1)
    assert coarser(found, step) == found


@pytest.mark.parametrize("power", range(17))
def test_an_octave_has_at_most_eight_numbers(power: int) -> None:
    octave = {coarser(n) for n in range(2**power, 2 ** (power + 1))} - {2 ** (power + 1)}
    assert len(octave) == min(8, 2**power)


LAYERS = config_of(
    4,
    2,
    model_type="bart",
    num_hidden_layers=2,
    intermediate_size=8,
    max_position_embeddings=6,
    type_vocab_size=0,
)


def test_every_tensor_has_a_key_of_its_own() -> None:
    rng = np.random.default_rng(0)
    shapes = ((3, 5, 4), (2, 5, 4), (2, 2, 5, 5), (2, 2, 5, 7), (5,))
    tensors = TargetTensors(*(rng.random(shape, np.float32) for shape in shapes))
    found = tensors.keyed()
    assert len(found) == 3 + 2 + 4 + 4 + 1
    assert list(map(str, list(found)[:7])) == [
        *("decoder_hidden 0", "decoder_hidden 1", "decoder_hidden 2"),
        *("cross_queries 0", "cross_queries 1", "decoder_attention 0.0", "decoder_attention 0.1"),
    ]
    assert found[Key("cross_attention", 1, 0)] is not None
    np.testing.assert_array_equal(found[Key("cross_attention", 1, 0)], tensors.cross_maps[1, 0])
    np.testing.assert_array_equal(found[Key("logprobs")], tensors.logprobs)


def test_labels_are_what_the_decoder_knows() -> None:
    decoder = DecoderConfig(layers=LAYERS, start_token_id=0)
    labels = random_labels(decoder, 5, seed=1)
    assert labels.shape == (5,)
    assert (random_labels(decoder, 99, 1) < 9).all()
    assert len(random_labels(decoder, 99, 1)) == 6
    assert not np.array_equal(labels, random_labels(decoder, 5, seed=2))


ADAPTERS = AdapterLayout(count=3, rank=2)
CONFIG = config_of(4, 2, model_type="jina_embeddings_v3", type_vocab_size=4, adapters=ADAPTERS)


@pytest.mark.parametrize(
    ("key", "shape", "low_rank", "down", "up"),
    [
        ("layers.0.a.query.weight", (5, 4), "layers.0.a.low_rank.query.{}.weight", (6, 4), (5, 6)),
        ("query_weight.1", (2, 5, 4), "query_{}.1", (6, 4), (2, 5, 6)),
        ("output_weight.0", (2, 5, 4), "output_{}.0", (2, 6, 4), (5, 6)),
    ],
)
def test_weights_get_the_product_of_one_adapter(
    key: str, shape: tuple[int, ...], low_rank: str, down: tuple[int, ...], up: tuple[int, ...]
) -> None:
    generator = np.random.default_rng(0)
    weight, a, b = (generator.standard_normal(size, np.float32) for size in (shape, down, up))
    bias = np.ones(3, np.float32)
    tensors = {
        key: weight,
        low_rank.format("down"): a,
        low_rank.format("up"): b,
        key.replace("weight", "bias"): bias,
    }
    ends = "ij,jk->ik" if len(shape) == 2 else "nij,jk->nik" if b.ndim == 3 else "ij,njk->nik"
    expected = weight + np.einsum(ends, b[..., 2:4], a[..., 2:4, :])
    np.testing.assert_allclose(adapted(tensors, key, 2, CONFIG), expected, atol=1e-6)
    assert adapted(tensors, key.replace("weight", "bias"), 2, CONFIG) is bias
    assert adapted(tensors, key, 0, CONFIG) is weight


RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((4, 3)).astype(np.float32)
HIDDEN = [
    RNG.standard_normal((n, 4)).astype(np.float32)
    for n in (3, 1, SLICE_TOKENS, 2 * SLICE_TOKENS + 5)
]


def config(kind: str, pooling: str) -> TaskConfig:
    return TaskConfig.model_validate({"kind": kind, "outputs": 3, "pooling": pooling})


@pytest.mark.parametrize("mode", ["cls", "mean"])
def test_one_row_a_text_is_pooled(mode: str) -> None:
    task = config("sequence_classification", mode)
    assert rows_of(task, [0, 2], 6) == ([], [TextPooling(n, 6, mode) for n in (0, 2)])  # type: ignore[arg-type]
    scores = text_scores(task, [text[0] for text in HIDDEN], lambda rows: rows @ WEIGHT)
    for of_text, hidden in zip(scores, HIDDEN, strict=True):
        np.testing.assert_allclose(of_text, hidden[0] @ WEIGHT, rtol=1e-5)


def test_a_row_a_token() -> None:
    task = config("token_classification", "none")
    assert rows_of(task, [1], 2) == ([(1, 2)], [])
    scores = text_scores(task, HIDDEN, lambda rows: rows @ WEIGHT)
    for of_text, hidden in zip(scores, HIDDEN, strict=True):
        np.testing.assert_allclose(of_text, hidden @ WEIGHT, rtol=1e-5)


@pytest.mark.parametrize("pooling", ["max", "sum"])
def test_parts_of_a_text_make_one_sparse_vector(pooling: str) -> None:
    task = config("sparse", pooling)
    assert rows_of(task, [1], 2) == ([(1, 2)], [])
    longest = 0

    def score(rows: Floats) -> Floats:
        nonlocal longest
        longest = max(longest, len(rows))
        found: Floats = getattr(np, pooling)(np.maximum(rows @ WEIGHT, 0), axis=0)[None]
        return found

    scores = text_scores(task, HIDDEN, score)
    assert longest == SLICE_TOKENS
    for of_text, hidden in zip(scores, HIDDEN, strict=True):
        whole = getattr(np, pooling)(np.maximum(hidden @ WEIGHT, 0), axis=0)
        np.testing.assert_allclose(of_text, whole, rtol=1e-4)
