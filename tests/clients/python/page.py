"""HTML page parsed again, and texts that contain markup."""

from __future__ import annotations

import html.parser
from typing import Any

NASTY = ["<script>alert(1)</script>", '"><img src=x onerror=y>', "&amp;", "'"]
SAFE = {"br", "code", "div", "small", "span", "table", "td", "th", "tr"}


class Page(html.parser.HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def assert_inert(self) -> None:
        """Assert that nothing runs, and nothing is fetched."""
        assert {tag for tag, _ in self.tags} <= SAFE
        for _, attributes in self.tags:
            assert attributes.keys() <= {"style", "title"}
            assert "url(" not in attributes.get("style", "")

    def cells(self) -> list[dict[str, Any]]:
        return [attributes for tag, attributes in self.tags if tag == "td"]
