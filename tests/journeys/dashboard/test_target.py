"""View of cross-attention: it shows the API's values for a text and its target."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from model.artifact.manifest import Artifact
from tests.journeys.conftest import running
from tests.journeys.dashboard.browser import VIEWER, Visitor, rows_of, said
from tests.journeys.dashboard.test_use import saved

pytestmark = pytest.mark.e2e
TEXT, TARGET = "w1 w2 w3 w4", "w7 w8 w7"


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


def asked(visitor: Visitor, **more: Any) -> dict[str, Any]:
    """Return the API's own reply."""
    body = {"inputs": TEXT, "targets": TARGET, "include": ["weights", "logprobs"], **more}
    found: dict[str, Any] = httpx.post(f"{visitor.url}/attention", json=body).json()["results"][0]
    return found


def test_a_target_over_its_text(translator: Visitor) -> None:
    page = translator.open(translator.state(a=TEXT))
    page.get_by_role("tab", name="Cross-attention").click()
    expect(page.get_by_label("Translation (or output) to examine")).to_be_visible()
    page.get_by_label("Translation (or output) to examine").fill(TARGET)
    said(page, "Cross-attention shown.")
    mean = asked(translator, layers=[-1])
    chances = rows_of(page, ".chances table")
    assert [name for name, _ in chances] == mean["target_tokens"] == ["w7", "w8", "w7", "</s>"]
    np.testing.assert_allclose(
        [float(chance) for _, chance in chances], np.exp(mean["target_logprobs"]), atol=1e-4
    )
    found = json.loads(saved(page, "JSON")[0])
    assert found["rows"] == mean["target_tokens"]
    assert found["columns"] == mean["tokens"]
    maps = np.array(mean["cross_attention"])
    np.testing.assert_allclose(found["weights"], maps[0].mean(axis=0), atol=1e-6)

    page.locator("#panel select").select_option(label="Layer 0 · head 2")
    expect(page).to_have_url(re.compile(r"cross=0\.2"))
    said(page, "Cross-attention shown.")
    page.wait_for_function("() => !document.querySelector('.stale')")
    found = json.loads(saved(page, "JSON")[0])
    one = np.array(asked(translator, layers=[0], heads=[2])["cross_attention"])[0, 0]
    np.testing.assert_allclose(found["weights"], one, atol=1e-6)


def test_norms_of_cross_attention(translator: Visitor) -> None:
    page = translator.open(translator.state(a=TEXT, target=TARGET, view="target", cross="0.2"))
    said(page, "Cross-attention shown.")
    page.get_by_role("button", name="Norms", exact=True).click()
    expect(page).to_have_url(re.compile("measure=norms"))
    page.wait_for_function("() => !document.querySelector('.stale')")
    expect(page.locator("#panel table.links th").nth(2)).to_have_text("norm")
    found = json.loads(saved(page, "JSON")[0])
    told = asked(translator, layers=[0], heads=[2], include=["norms"])
    np.testing.assert_allclose(found["norms"], np.array(told["cross_norms"])[0, 0], atol=1e-6)


def test_a_model_without_a_decoder_says_so(visitor: Visitor) -> None:
    page = visitor.open(visitor.state(a="one text", target="another"))
    said(page, "72 heads drawn.")
    expect(page.get_by_role("tab", name="Cross-attention")).to_be_hidden()
    page = visitor.open(visitor.state(a="one text", target="another", view="target"))
    expect(page.get_by_text("This model has no decoder")).to_be_visible()
