"""Windows of the input: neighbouring rows that are tokenised and sorted by length together.

They bound memory, whatever the input's size; what a window holds follows from the rows alone, so
that a resumed run has the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from service.files.inputs import Place

ROW_CHARACTERS = 16
"""That a row counts for beside those of its text."""


@dataclass
class Window:
    """Neighbouring rows of all inputs."""

    start: int
    """Index of its first row."""
    places: list[Place] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Index after its last row."""
        return self.start + len(self.places)


def windows(places: Iterable[Place], characters: int, done: Mapping[int, int]) -> Iterator[Window]:
    """The windows that are not done.

    Args:
        places: every row.
        characters: most of a window; one row may alone have more.
        done: where those that are done start and end.

    """
    window, size, resume = Window(0), 0, 0
    for place in places:
        own = ROW_CHARACTERS + len(place.row.text or "")
        if window.places and size + own > characters:
            yield window
            window, size = Window(place.position), 0
        if not window.places:
            resume = done.get(place.position, resume)
        if place.position < resume:
            window = Window(place.position + 1)
            continue
        window.places.append(place)
        size += own
    if window.places:
        yield window
