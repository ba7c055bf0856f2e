"""Requests of a browser that opens the page, and that reloads it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page

from tests.journeys.dashboard.browser import said

pytestmark = pytest.mark.e2e
TRANSFERRED = """() => performance.getEntriesByType('resource')
  .filter(({ transferSize }) => transferSize > 0).map(({ name }) => name)"""
"""Script that returns the addresses of what came over the network and not from the cache."""
DIGEST = re.compile(r"/dashboard/[0-9a-f]{32}/")


def files_of(page: Page) -> set[str]:
    """Return the names of the dashboard's files that came over the network."""
    said(page, "72 heads drawn.")
    paths = {urlsplit(address).path for address in page.evaluate(TRANSFERRED)}
    assert paths & {"/attention", "/info"} == {"/attention", "/info"}
    files = {path for path in paths if path.startswith("/dashboard/")}
    assert all(DIGEST.match(path) for path in files)
    return {PurePosixPath(path).name for path in files}


def test_a_reload_asks_for_no_file_again(visitor) -> None:
    """Every file has its digest in its path; all modules are one script."""
    page = visitor.open(color_scheme="light")
    assert files_of(page) == {"bundle.js", "favicon.svg", "style.css", "theme.js"}
    page.reload()
    assert files_of(page) == set()
