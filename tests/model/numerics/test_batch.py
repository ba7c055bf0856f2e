from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model.numerics.batch import PADDING, Batch, coarser, dummies, pack, padded, widen

Text = tuple[list[int], list[int]]
LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=12)


def random_texts(lengths: list[int]) -> list[Text]:
    rng = np.random.default_rng(lengths)
    return [(rng.integers(0, 99, n).tolist(), rng.integers(0, 2, n).tolist()) for n in lengths]


def test_pack_lays_texts_end_to_end() -> None:
    batch = pack([([5, 6, 7], [0, 0, 1]), ([8], [1]), ([9, 5], [0, 1])])
    assert batch.input_ids.tolist() == [5, 6, 7, 8, 9, 5]
    assert batch.token_type_ids.tolist() == [0, 0, 1, 1, 0, 1]
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 0, 1]
    assert batch.padded_index.tolist() == [[0, 1, 2], [3, -1, -1], [4, 5, -1]]
    assert batch.packed_index.tolist() == [0, 1, 2, 3, 6, 7]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 6]


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
    for row, (ids, segments) in zip(batch.padded_index, texts, strict=True):
        n = len(ids)
        assert batch.input_ids[row[:n]].tolist() == ids
        assert batch.token_type_ids[row[:n]].tolist() == segments
        assert batch.position_ids[row[:n]].tolist() == list(range(n))
        assert (row[n:] == PADDING).all()


@settings(deadline=None)
@given(LENGTHS)
def test_there_and_back(lengths: list[int]) -> None:
    batch = pack(random_texts(lengths))
    tokens = np.arange(sum(lengths))
    grid = batch.padded_index.flatten()
    assert grid[grid != PADDING].tolist() == tokens.tolist()
    assert grid[batch.packed_index].tolist() == tokens.tolist()
    places, (held,) = batch.packed_index, np.nonzero(grid != PADDING)
    assert places.tolist() == held.tolist()


@settings(deadline=None)
@given(LENGTHS)
def test_cu_seqlens_cut_the_texts_out_again(lengths: list[int]) -> None:
    texts = random_texts(lengths)
    batch = pack(texts)
    starts, ends = batch.cu_seqlens[:-1], batch.cu_seqlens[1:]
    assert len(starts) == len(texts)
    cut = [batch.input_ids[a:b].tolist() for a, b in zip(starts, ends, strict=True)]
    assert cut == [ids for ids, _ in texts]


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


# ── coarser numbers ────────────────────────────────────────────────────────────────────────


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
