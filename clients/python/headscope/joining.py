"""Joining of the parts of a call's replies to its result."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from headscope.errors import Refused
from headscope.results import Rank
from headscope.service_results import Difference, Verification

T = TypeVar("T")


def only(parts: Sequence[T]) -> T:
    """Return the part of the only request."""
    (part,) = parts
    return part


def chained(parts: Iterable[Sequence[T]]) -> list[T]:
    """Concatenate lists."""
    return list(itertools.chain.from_iterable(parts))


def ranked(parts: Iterable[Sequence[Rank | Refused]]) -> list[Rank | Refused]:
    """Return the ranks of all parts, the largest score first, followed by the errors."""
    start, moved, refused = 0, [], []
    for part in parts:
        ranks = [rank for rank in part if isinstance(rank, Rank)]
        moved.append([replace(rank, index=rank.index + start) for rank in ranks])
        refused += [error for error in part if isinstance(error, Refused)]
        start += len(part)
    return [*heapq.merge(*moved, key=lambda rank: -rank.score), *refused]


def worst(parts: Sequence[Verification]) -> Verification:
    """Combine verifications of parts of the texts to one of all texts."""
    tasks = [part.task for part in parts if part.task]
    return replace(
        parts[0],
        passed=all(part.passed for part in parts),
        inputs=sum(part.inputs for part in parts),
        hidden=tuple(map(farthest, zip(*(part.hidden for part in parts), strict=True))),
        attention=tuple(map(farthest, zip(*(part.attention for part in parts), strict=True))),
        pooled=farthest([part.pooled for part in parts]),
        task=farthest(tasks) if tasks else None,
    )


def farthest(differences: Sequence[Difference]) -> Difference:
    """Combine differences of one tensor to the worst."""
    return replace(
        differences[0],
        max_abs_diff=max(d.max_abs_diff for d in differences),
        min_cosine=min(d.min_cosine for d in differences),
        passed=all(d.passed for d in differences),
    )
