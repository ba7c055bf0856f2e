"""Windows of the input: consecutive rows that are tokenised and batched together.

Windows bound memory for inputs of any size. They depend on the rows alone, so that a resumed run
has the same windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from service.files.inputs import Place

ROW_CHARACTERS = 16
"""Characters that a row counts in addition to its text."""


@dataclass
class Window:
    """Consecutive rows of all inputs."""

    start: int
    """Index of the first row."""
    places: list[Place] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Index after the last row."""
        return self.start + len(self.places)


def windows(places: Iterable[Place], characters: int, done: Mapping[int, int]) -> Iterator[Window]:
    """Yield the windows that are not done.

    Args:
        places: all rows.
        characters: maximum characters of a window; a longer row is a window of its own.
        done: start → end of the completed windows.

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
