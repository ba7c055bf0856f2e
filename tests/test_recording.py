"""Replies to about seven hundred requests, compared byte for byte with their recording.

`python -m trials.recording tests/recording/replies.jsonl` records them anew; the
changelog then says what callers see.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trials.recording.replies import Entry, compare, read, record

RECORDED = Path(__file__).parent / "recording" / "replies.jsonl"


@pytest.fixture(scope="module")
def recorded() -> list[Entry]:
    return read(RECORDED)


@pytest.mark.e2e
def test_replies_are_what_they_were(recorded: list[Entry]) -> None:
    assert compare(recorded, record()) == []


def changed(entry: Entry) -> Iterator[tuple[str, Entry]]:
    """Yield copies of an entry with one change in its reply, and the description of the change."""
    names = [name for name, _ in entry["replies"][0]["headers"]]
    body = entry["replies"][0]["body"]
    for says, change in {
        "status": lambda reply: reply.update(status=599),
        f"header {names[0]}": lambda reply: reply["headers"].pop(0),
        "header x-new": lambda reply: reply["headers"].append(["x-new", "1"]),
        "body": lambda reply: reply.update(body={kind: flip(body[kind]) for kind in body}),
    }.items():
        found = copy.deepcopy(entry)
        change(found["replies"][0])
        yield says, found


def flip(value: Any) -> Any:
    """Change the first letter of a text, of base64 or of hashes, and keep the length."""
    return ("A" if value[:1] != "A" else "B") + value[1:] if isinstance(value, str) else value


def test_whatever_changes_in_a_reply_is_told(recorded: list[Entry]) -> None:
    for entry in recorded:
        for says, found in changed(entry):
            (difference,) = compare([entry], [found])
            assert difference.startswith(f"{entry['name']}: {says}"), difference
