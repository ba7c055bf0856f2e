"""Parts of maps, against plain indexing and torch's own adaptive pooling."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from service.inference.attention.map_parts import MapPart, bins, max_pooled

SHAPES = [(1, 1), (1, 9), (20, 20), (96, 96), (97, 97), (7, 300), (191, 192), (193, 64), (300, 5)]


def maps_of(queries: int, keys: int) -> np.ndarray:
    generator = np.random.default_rng(queries * keys)
    return generator.dirichlet(np.full(keys, 0.1), (3, queries)).astype(np.float32)


@pytest.mark.parametrize("most", [1, 2, 7, 96, 10**9])
@pytest.mark.parametrize(("queries", "keys"), SHAPES)
def test_pooled_maps_are_torchs(queries: int, keys: int, most: int) -> None:
    """Bit for bit; and each cell is the largest weight between the tokens of its bins."""
    maps = maps_of(queries, keys)
    size = min(queries, most), min(keys, most)
    wanted = torch.nn.functional.adaptive_max_pool2d(torch.from_numpy(maps), size).numpy()
    found = max_pooled(maps, most)
    np.testing.assert_array_equal(found, wanted, strict=True)
    rows, columns = bins(queries, most), bins(keys, most)
    row, column = size[0] // 2, size[1] - 1
    (top, bottom), (left, right) = rows[row], columns[column]
    cells = maps[:, top:bottom, left:right].max(axis=(1, 2))
    np.testing.assert_array_equal(found[:, row, column], cells)
    assert (len(rows), rows[0, 0], rows[-1, 1]) == (size[0], 0, queries)


@pytest.mark.parametrize("max_size", [None, 1, 4, 50])
@pytest.mark.parametrize("keys", [None, (3,), (-1, 0, 5, -8)])
@pytest.mark.parametrize("queries", [None, (-1,), (2, 0, -3, 11, 4)])
def test_a_part_is_indexed_and_then_pooled(
    queries: tuple[int, ...] | None, keys: tuple[int, ...] | None, max_size: int | None
) -> None:
    maps, part = maps_of(12, 17), MapPart(queries, keys, max_size)
    wanted = maps if queries is None else maps[:, list(queries)]
    np.testing.assert_array_equal(part.rows(maps), wanted, strict=True)
    wanted = wanted if keys is None else wanted[:, :, list(keys)]
    if max_size is not None:
        size = [min(length, max_size) for length in wanted.shape[1:]]
        wanted = torch.nn.functional.adaptive_max_pool2d(torch.tensor(wanted), size).numpy()
    found = part.of(maps)
    np.testing.assert_array_equal(found, wanted, strict=True)
    assert found.flags.c_contiguous
    assert part.shape(12, 17) == found.shape[1:]
    assert part.chosen is (queries is not None or keys is not None)
