"""Call of a client as data, to be sent as one or several requests."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from headscope.errors import Refused
from headscope.inputs import Item, PairItem, Picture
from headscope.results import Rank
from headscope.service_results import Difference, Info, Verification
from headscope.wire import JSON

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


P = TypeVar("P")
T_co = TypeVar("T_co", covariant=True)
Raises = Literal["raise"]
Returns = Literal["return"]
OnError = Raises | Returns
"""Handling of a refused input: raise its error, or return the error in the input's place."""
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Call(Generic[P, T_co]):
    """Call whose inputs are divided among requests; a reply is parsed to a `P`, all to a `T_co`."""

    path: str
    inputs: Sequence[Item | PairItem]
    """Inputs; empty for a GET."""
    body: Mapping[str, object] | None
    """Body without the inputs; None for a GET."""
    read: Callable[[bytes, Sequence[Any]], P]
    """Parser of a reply with status 200, given its content and the inputs of the request."""
    join: Callable[[Sequence[P]], T_co]
    """Function that joins the parts in order; it gets none without inputs."""
    accept: str = JSON
    name: str = "inputs"
    """Name of the inputs in the body."""
    shared: str = ""
    """Text that is combined with each input."""
    targets: Sequence[str] = ()
    """Targets, one per input, sent beside the inputs; or none."""
    targets_name: str = "targets"
    """Name of the targets in the body."""
    weigh: Callable[[int, Info], int] = lambda tokens, _: FLOAT_BYTES * tokens
    """Estimate of a reply's bytes, given an input's tokens and the service's information."""
    on_error: OnError = "raise"
    whole: bool = False
    """Whether all inputs must be in one request, because they refer to each other."""

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "return"):
            raise ValueError(f'on_error is {self.on_error!r}: use "raise" or "return"')

    def written(self, part: range) -> dict[str, object]:
        """Return the inputs of a request as fields of the body."""
        rows = slice(part.start, part.stop)
        own = [_element(item) for item in self.inputs[rows]]
        fields: dict[str, object] = {self.name: own}
        return fields | ({self.targets_name: self.targets[rows]} if self.targets else {})

    def read_part(self, content: bytes, part: range) -> P:
        """Parse a reply; `read` gets each input with its target if there are targets.

        Raises:
            Exception: one of `headscope.reading.NOT_OURS`, for content in another format.

        """
        rows = slice(part.start, part.stop)
        inputs, targets = self.inputs[rows], self.targets[rows]
        return self.read(content, [*zip(inputs, targets, strict=True)] if targets else inputs)

    def texts(self, index: int) -> list[str]:
        """Return all texts that the service computes an input with; none of a picture."""
        sides = _sides(self.inputs[index])
        texts = [side for side in sides if isinstance(side, str)]
        return [self.shared, *texts, *self.targets[index : index + 1]] if texts else []

    def pictures(self, index: int) -> list[Picture]:
        """Return the pictures of an input."""
        return [side for side in _sides(self.inputs[index]) if isinstance(side, Picture)]

    @property
    def model(self) -> str | None:
        """Name of the model that the call is for; None for the default."""
        model = (self.body or {}).get("model")
        return None if model is None else str(model)


def _sides(item: Item | PairItem) -> PairItem:
    return [item] if isinstance(item, str | Picture) else item


def _element(item: Item | PairItem) -> object:
    """Return an input as JSON."""
    if isinstance(item, Picture):
        return item.element
    return item if isinstance(item, str) else [_element(side) for side in item]


CallFor = Call[Any, T_co]
"""Call with this type of result; only its own functions know the type of its parts."""
