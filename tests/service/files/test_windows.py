"""Windows depend only on the rows, not on the state of a run."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from service.files.inputs import Place
from service.files.lines import TextLines
from service.files.rows import Row
from service.files.windows import ROW_CHARACTERS, windows

SOURCE = TextLines(Path("a"), "a", "text", frozenset())


@given(st.lists(st.integers(0, 300), max_size=60), st.randoms(use_true_random=False))
def test_what_is_left_of_all_windows(lengths: list[int], chance: object) -> None:
    places = [Place(i, SOURCE, Row(i + 1, "x" * n)) for i, n in enumerate(lengths)]
    whole = list(windows(places, 400, {}))
    assert [place for window in whole for place in window.places] == places
    for window in whole:
        size = sum(ROW_CHARACTERS + len(place.row.text or "") for place in window.places)
        assert size <= 400 or len(window.places) == 1
    done = [window for window in whole if chance.random() < 0.5]  # type: ignore[attr-defined]
    left = list(windows(places, 400, {window.start: window.end for window in done}))
    assert left == [window for window in whole if window not in done]
