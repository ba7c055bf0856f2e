"""Changes of settings that apply at once, and changes that need a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.settings import Settings
from service.settings.changes import OF_MODELS, RELOADED, changes_of, read_again
from service.settings.config_file import Content

NONE = Content(Path())
TABLE = {"models": {"a": {"source": "x"}}}
PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


@pytest.mark.parametrize(
    ("old", "new", "applied", "restart"),
    [
        ({}, {"port": 1, "max_response_bytes": 200}, ["max-response-bytes"], ["port"]),
        ({}, {"max_length": 2}, ["max-length"], []),
        ({}, {"precision": "int8"}, [], ["precision"]),
        ({"tables": TABLE}, {"tables": TABLE, "precision": "int8"}, ["precision"], []),
        ({}, {"model": "x", "max_length": 2}, [], ["model", "max-length"]),
        ({}, {"tables": TABLE}, [], ["model.a: added"]),
        ({"models": Path("m")}, {"models": Path("m"), "tables": TABLE}, ["model.a: added"], []),
    ],
)
def test_what_applies_at_once(
    old: dict[str, object], new: dict[str, object], applied: list[str], restart: list[str]
) -> None:
    current = Settings(**old)  # type: ignore[arg-type]
    changes = changes_of(current, Settings(**new), NONE)  # type: ignore[arg-type]
    assert (changes.applied, changes.restart) == (applied, restart)
    if "port" in new:
        assert (changes.settings.port, changes.settings.max_response_bytes) == (8000, 200)


def test_the_page_lists_what_applies_at_once() -> None:
    text = PAGE.read_text("utf-8").split("## Changes while the service runs")[1].split("\n## ")[0]
    for name in {*RELOADED} - {"tables"}:
        assert f"`{name.replace('_', '-')}`" in text, name
    assert {*OF_MODELS} <= {*RELOADED}


def test_without_a_file_there_is_nothing_to_read() -> None:
    with pytest.raises(ValueError, match="started without a file of settings"):
        read_again(Settings())
