"""One call of a client as data, whose inputs become those of one request or of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from headscope.service_results import Info

P = TypeVar("P")
T = TypeVar("T")
Raises = Literal["raise"]
Returns = Literal["return"]
OnError = Raises | Returns
"""Handling of an input that is refused: raise its error, or return it in the input's place."""
JSON = "application/json"
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Call(Generic[P, T]):
    """One call, of which a request has a part of the inputs, and its reply a `P`."""

    path: str
    inputs: Sequence[Any]
    """Empty for a GET."""
    body: Mapping[str, Any] | None
    """Without the inputs; None for a GET."""
    read: Callable[[bytes, Sequence[Any]], P]
    """The content of a 200 and the inputs that were sent."""
    join: Callable[[Sequence[P]], T]
    """Of the parts in their order; of none where there are no inputs."""
    accept: str = JSON
    name: str = "inputs"
    """The inputs' name in the body."""
    shared: str = ""
    """A text that each input is computed with."""
    targets: Sequence[str] = ()
    """One an input, which is sent beside it; or none."""
    targets_name: str = "targets"
    """Name of the targets in the body."""
    weigh: Callable[[int, Info], int] = lambda tokens, _: FLOAT_BYTES * tokens
    """About how many bytes the reply to an input of so many tokens has."""
    on_error: OnError = "raise"
    whole: bool = False
    """Whether all inputs go into one request, as they refer to each other."""

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "return"):
            raise ValueError(f'on_error is {self.on_error!r}: use "raise" or "return"')

    def written(self, part: range) -> dict[str, Any]:
        """The inputs of a request, as they are sent."""
        rows = slice(part.start, part.stop)
        found: dict[str, Any] = {self.name: self.inputs[rows]}
        return found | ({self.targets_name: self.targets[rows]} if self.targets else {})

    def read_part(self, content: bytes, part: range) -> P:
        """The result of a request: `read` has each input with its target where there are targets.

        Raises:
            Exception: one of `headscope.reading.NOT_OURS`, of content of another form.

        """
        rows = slice(part.start, part.stop)
        inputs, targets = self.inputs[rows], self.targets[rows]
        return self.read(content, [*zip(inputs, targets, strict=True)] if targets else inputs)

    def texts(self, index: int) -> list[str]:
        """All texts that an input is computed with."""
        one = self.inputs[index]
        target = self.targets[index : index + 1]
        return [self.shared, *([one] if isinstance(one, str) else one), *target]

    @property
    def model(self) -> str | None:
        """Which of several models is asked."""
        return None if self.body is None else self.body.get("model")
