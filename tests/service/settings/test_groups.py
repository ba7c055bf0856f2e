"""Groups of settings equal the headings of docs/configuration.md."""

from __future__ import annotations

import re
from pathlib import Path

from service.settings import Settings
from service.settings.groups import Group, Shown

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def test_the_page_has_each_setting_in_its_group() -> None:
    sections = re.split(r"^### (.+)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    reported = {
        heading: re.findall(r"^\| `--([a-z-]+)` \|", text, re.MULTILINE)
        for heading, text in zip(sections[::2], sections[1::2], strict=True)
    }
    expected: dict[str, list[str]] = {group: [] for group in Group}
    for name, field in Settings.flags().items():
        (shown,) = (item for item in field.metadata if isinstance(item, Shown))
        expected[shown.group].append(name.replace("_", "-"))
    assert reported == expected
