"""The parts of a call's replies, in the order of its inputs → its result."""

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
    """That of the one request there was."""
    (part,) = parts
    return part


def chained(parts: Iterable[Sequence[T]]) -> list[T]:
    """Lists, end to end."""
    return list(itertools.chain.from_iterable(parts))


def ranked(parts: Iterable[Sequence[Rank | Refused]]) -> list[Rank | Refused]:
    """Return the ranks of all parts, the largest score first, and after them the errors."""
    start, moved, refused = 0, [], []
    for part in parts:
        ranks = [one for one in part if isinstance(one, Rank)]
        moved.append([replace(one, index=one.index + start) for one in ranks])
        refused += [one for one in part if isinstance(one, Refused)]
        start += len(part)
    return [*heapq.merge(*moved, key=lambda one: -one.score), *refused]


def worst(parts: Sequence[Verification]) -> Verification:
    """Verifications of some texts each as one of all."""
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
    """The differences of one tensor as one."""
    return replace(
        differences[0],
        max_abs_diff=max(one.max_abs_diff for one in differences),
        min_cosine=min(one.min_cosine for one in differences),
        passed=all(one.passed for one in differences),
    )
