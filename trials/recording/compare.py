"""Differences between two recordings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from trials.recording.entries import BLOCK_BYTES, HASH_CHARACTERS, Entry, content

EXCERPT_BYTES = 60
"""Bytes shown around a difference."""
NEAR = 1e-5
"""Tolerance, absolute and relative, for sums of many terms on different processors."""

Headers = Sequence[tuple[str, str]]


def compare(old: Sequence[Entry], new: Sequence[Entry], *, near: bool = False) -> list[str]:
    """Return descriptions of the differences, a line each.

    Args:
        old: entries of a recording.
        new: entries of another recording.
        near: whether numbers that depend on the processor may differ within `NEAR`.

    """
    before, after = ({item["name"]: item for item in entries} for entries in (old, new))
    lines = [f"{name}: only in the old recording" for name in before if name not in after]
    lines += [f"{name}: only in the new recording" for name in after if name not in before]
    for name in before:
        if name in after:
            differences = _entries(before[name], after[name], near=near)
            lines += [f"{name}: {difference}" for difference in differences]
    return lines


def _entries(old: Entry, new: Entry, *, near: bool) -> Iterator[str]:
    if old["sent"] != new["sent"]:
        yield "the requests themselves differ"
        return
    for one, other in zip(old["replies"], new["replies"], strict=True):
        if one["status"] != other["status"]:
            yield f"status {one['status']} → {other['status']}"
        apart = _bodies(one["body"], other["body"])
        forgiven = apart and near and not old["exact"] and close(one["body"], other["body"])
        headers = _headers_but_length if forgiven else _all_headers
        yield from _differences(headers(one), headers(other))
        if apart and not forgiven:
            yield apart


def _all_headers(reply: Entry) -> Headers:
    return [(name, value) for name, value in reply["headers"]]


def _headers_but_length(reply: Entry) -> Headers:
    """Return the headers without the body's length, which depends on the numbers' last bits."""
    length = str(len(content(reply["body"]) or b""))
    return [header for header in _all_headers(reply) if header != ("content-length", length)]


def _differences(old: Headers, new: Headers) -> Iterator[str]:
    before, after = (_by_name(headers) for headers in (old, new))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield f"header {name}: {before.get(name)} → {after.get(name)}"


def _by_name(headers: Headers) -> Mapping[str, list[str]]:
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    return values


def _bodies(old: Entry, new: Entry) -> str:
    """Return a description of the first difference of two bodies; empty if they are equal."""
    if old == new:
        return ""
    one, other = content(old), content(new)
    if one is None or other is None:
        return _hashed(old, new)
    at = _first_difference(one, other)
    start = max(0, at - EXCERPT_BYTES // 2)
    excerpts = (body[start : start + EXCERPT_BYTES] for body in (one, other))
    shown = " → ".join(repr(excerpt) for excerpt in excerpts)
    return f"body, byte {at} of {len(one)} → {len(other)}: {shown}"


def _hashed(old: Entry, new: Entry) -> str:
    if "blocks" not in old or "blocks" not in new:
        return "body: long in one recording only, or recorded with other limits"
    block = _first_difference(old["blocks"], new["blocks"]) // HASH_CHARACTERS
    return (
        f"body, {old['length']} → {new['length']} bytes: "
        f"the first difference is within {BLOCK_BYTES} bytes from {block * BLOCK_BYTES} on"
    )


def _first_difference(one: str | bytes, other: str | bytes) -> int:
    """Return the first position at which two sequences differ, or the shorter one's length."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def close(old: Entry, new: Entry) -> bool:
    """Return whether two bodies are equal except for floats within `NEAR` of each other."""
    one, other = content(old), content(new)
    if one is None or other is None:
        return False
    if "text" in old and "text" in new:
        return _near_texts(one, other)
    return len(one) == len(other) and _near_tensors(one, other)


_FLOAT = re.compile(rb"(-?\d+\.\d+(?:e[-+]?\d+)?)")


def _near_texts(old: bytes, new: bytes) -> bool:
    one, other = _FLOAT.split(old), _FLOAT.split(new)
    if len(one) != len(other) or one[::2] != other[::2]:
        return False
    return _near([float(part) for part in one[1::2]], [float(part) for part in other[1::2]])


def _near_tensors(old: bytes, new: bytes) -> bool:
    head = 8 + int.from_bytes(old[:8], "little")
    if old[:head] != new[:head]:
        return False
    one, other = safetensors.numpy.load(old), safetensors.numpy.load(new)
    return all(_near(one[name], other[name]) for name in one)


def _near(old: npt.ArrayLike, new: npt.ArrayLike) -> bool:
    return bool(np.allclose(old, new, rtol=NEAR, atol=NEAR))
