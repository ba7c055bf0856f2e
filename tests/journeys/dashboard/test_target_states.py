"""View of cross-attention between a request and its reply, and its accessibility."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from model.artifact.manifest import Artifact
from tests.journeys.conftest import running
from tests.journeys.dashboard.between import (
    Files,
    Network,
    enter_text,
    is_marked_old,
    maps,
    seen,
    told,
)
from tests.journeys.dashboard.browser import VIEWER, Visitor
from tests.journeys.dashboard.test_accessibility import WIDTHS, everywhere

pytestmark = pytest.mark.e2e
SHOWN = "Cross-attention shown."


@pytest.fixture
def translator(browser: Browser, bart_artifact: Artifact) -> Iterator[Visitor]:
    """Yield a visitor of a service over a tiny encoder–decoder."""
    with (
        running("--artifact", str(bart_artifact.folder)) as url,
        browser.new_context(**VIEWER) as context,
    ):
        visitor = Visitor(context, url)
        yield visitor
        visitor.check()
        visitor.close()


def test_an_old_target_is_not_shown_nor_saved_as_the_new(translator):
    state = translator.state(view="target", a="w1 w2 w3 w4", target="w7 w8 w7")
    page = translator.open(state)
    told(page, SHOWN)
    found = everywhere(page, WIDTHS)
    files, network = Files(page), Network(page)
    enter_text(page, "w5 w6", "Translation (or output) to examine")
    network.asked()
    for one in seen(maps(page)):
        assert is_marked_old(one)
    files.try_to_save("JSON")
    network.release()
    told(page, SHOWN)
    for content in [*(content for _, content in files.contents()), files.save("JSON")]:
        assert json.loads(content)["rows"] == ["w5", "w6", "</s>"]
    assert not found, sorted(found)
