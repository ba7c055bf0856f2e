"""32-bit MurmurHash3, x86 (Appleby 2011), for the indices of BM42."""

from __future__ import annotations

_MASK = 0xFFFFFFFF


def murmur3(data: bytes) -> int:
    """Return the signed hash with seed 0."""
    state = 0
    whole = len(data) - len(data) % 4
    for start in range(0, whole, 4):
        state ^= _mixed(int.from_bytes(data[start : start + 4], "little"))
        state = (_rotated(state, 13) * 5 + 0xE6546B64) & _MASK
    state ^= _mixed(int.from_bytes(data[whole:], "little"))
    state ^= len(data)
    state = ((state ^ state >> 16) * 0x85EBCA6B) & _MASK
    state = ((state ^ state >> 13) * 0xC2B2AE35) & _MASK
    state ^= state >> 16
    return state - (state >> 31 << 32)


def _mixed(block: int) -> int:
    return _rotated((block * 0xCC9E2D51) & _MASK, 15) * 0x1B873593 & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK
