"""Relative positions of tokens: rotary positions, distances, buckets of distances.

Notation: T query positions, S key positions, p size of a head's projection, n heads. A text's
tokens have the positions 0, 1, 2, …
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from model.config.encoder import LogBuckets, RotaryScaling


def rotary_frequencies(base: float, size: int, scaling: RotaryScaling | None = None) -> Tensor:
    """Return base^(−2i/p), i = 0 … p/2 − 1 (Su et al. 2021, section 3.2.2), perhaps scaled.

    They are `[p/2]`, float32, on the CPU whatever the default device: they are not a parameter.
    """
    exponents = torch.arange(0, size, 2, dtype=torch.float32, device="cpu") / size
    frequencies = 1.0 / base**exponents
    if scaling is None:
        return frequencies
    kept = torch.zeros_like(frequencies)  # share of each frequency that is not divided
    if scaling.kind == "llama3":  # linear in its rotations over the original length
        low, high = scaling.low_rotations, scaling.high_rotations
        rotations = scaling.original_length * frequencies / (2 * math.pi)
        kept = ((rotations - low) / (high - low)).clamp(0, 1)
    elif scaling.kind == "yarn":
        kept = _kept_by_yarn(scaling, frequencies, base)
    return frequencies * kept + frequencies / scaling.factor * (1 - kept)


def _kept_by_yarn(scaling: RotaryScaling, frequencies: Tensor, base: float) -> Tensor:
    """Return the kept share of each frequency, linear in the feature's index.

    Peng et al. 2023, section 3.2 (https://arxiv.org/abs/2309.00071).
    """
    size = 2 * len(frequencies)

    def index(rotations: float) -> float:  # of the feature that turns so often
        ratio = scaling.original_length / (rotations * 2 * math.pi)
        return size * math.log(ratio) / (2 * math.log(base))

    first, last = index(scaling.high_rotations), index(scaling.low_rotations)
    if scaling.whole_features:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    if first == last:
        last += 0.001
    features = torch.arange(len(frequencies), dtype=torch.float32, device="cpu")
    return 1 - ((features - first) / (last - first)).clamp(0, 1)


def rotate(x: Tensor, frequencies: Tensor) -> Tensor:
    """Rotate features i and i + p/2 of the token at position m by the angle m · frequency i.

    `x` are queries or keys, `[B, n, T, p]`; the frequencies are `[p/2]` or `[n, p/2]`, and float32,
    because half precision cannot represent the angles.
    """
    positions = torch.arange(x.shape[-2], dtype=torch.float32, device=x.device)
    angles = positions[:, None] * frequencies.unsqueeze(-2)  # [T, p/2] or [n, T, p/2]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def alibi_table(heads: int, longest: int) -> Tensor:
    """Return each head's bias of each distance −(longest − 1) … longest − 1.

    The slopes of n heads, a power of two, are 2^(−8i/n), i = 1 … n; further heads have every other
    slope of twice as many heads (Press et al. 2022, section 3 and their code). The table is `[N, 2
    · longest − 1]`, float32, on the CPU whatever the default device: it is not a parameter.
    """
    distance = torch.arange(1 - longest, longest, dtype=torch.float32, device="cpu")
    slopes = torch.tensor(_alibi_slopes(heads), dtype=torch.float32, device="cpu")
    return -slopes[:, None] * distance.abs()


def _alibi_slopes(heads: int) -> list[float]:
    power = 2 ** (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    if power == heads:
        return slopes
    return slopes + _alibi_slopes(2 * power)[::2][: heads - power]


def distances(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return the position of the key minus the position of the query, int64 `[T, S]`."""
    query = torch.arange(queries, device=device)
    return torch.arange(keys, device=device) - query[:, None]


def bucket_table(buckets: LogBuckets, longest: int) -> Tensor:
    """Return the bucket of each distance −(longest − 1) … longest − 1, int64 `[2 · longest − 1]`.

    T5's buckets are 0 … count − 1; DeBERTa's are 0 … 2 · count − 1, where distance 0 has bucket
    count. The table is on the CPU whatever the default device, because it is not a parameter.
    """
    distance = torch.arange(1 - longest, longest, device="cpu")
    count, farthest = buckets.count, buckets.max_distance
    if buckets.kind == "t5":
        after = count // 2 * (distance > 0).long()
        return _t5_buckets(distance.abs(), count // 2, farthest) + after
    if buckets.kind == "t5_causal":
        return _t5_buckets(-distance.clamp_max(0), count, farthest)
    relative = -distance  # from the key to the query
    if buckets.kind == "deberta":
        relative = _deberta_buckets(relative, count, farthest)
    return (relative + count).clamp(0, 2 * count - 1)


def _t5_buckets(far: Tensor, count: int, max_distance: int) -> Tensor:
    """Return the bucket of each distance in one direction: half are exact, the rest logarithmic.

    Raffel et al. 2020, section 2.1 (https://arxiv.org/abs/1910.10683).
    """
    exact = count // 2
    ratio = (far.clamp_min(1).float() / exact).log() / math.log(max_distance / exact)
    logarithmic = (exact + (ratio * (count - exact)).long()).clamp_max(count - 1)
    return torch.where(far < exact, far, logarithmic)


def _deberta_buckets(relative: Tensor, count: int, max_distance: int) -> Tensor:
    """Return signed buckets of distances: exact up to half of the buckets, logarithmic beyond.

    He et al. 2021, section 3.2, with the buckets of version 2
    (https://arxiv.org/abs/2111.09543, appendix).
    """
    middle = count // 2
    near = (relative < middle) & (relative > -middle)
    far = torch.where(near, middle - 1, relative.abs())
    scale = torch.log(torch.tensor((max_distance - 1) / middle, device="cpu"))
    steps = torch.ceil(torch.log(far / middle) / scale * (middle - 1)) + middle
    return torch.where(far <= middle, relative.float(), steps * relative.sign()).long()
