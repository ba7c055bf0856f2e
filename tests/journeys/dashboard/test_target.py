"""View of cross-attention: the API's values, its states, and its accessibility."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.journeys.dashboard.between import (
    Files,
    Network,
    enter_text,
    is_marked_old,
    maps,
    seen,
    turn,
)
from tests.journeys.dashboard.browser import Visitor, rows_of, said
from tests.journeys.dashboard.test_accessibility import WIDTHS, everywhere
from tests.journeys.dashboard.test_use import saved

pytestmark = pytest.mark.e2e
TEXT, TARGET = "w1 w2 w3 w4", "w7 w8 w7"
ASKED = {"inputs": TEXT, "targets": TARGET, "include": ["weights", "logprobs"]}


def opened(visitor: Visitor, **state: Any) -> Page:
    """Open the page of the encoder–decoder."""
    return visitor.open(f"?model=translator{visitor.state(**state)}")


def asked(visitor: Visitor, **more: Any) -> dict[str, Any]:
    """Return the API's own reply."""
    body = ASKED | {"model": "translator"} | more
    found: dict[str, Any] = httpx.post(f"{visitor.url}/attention", json=body).json()["results"][0]
    return found


def test_a_target_over_its_text(visitor_of_kinds: Visitor) -> None:
    page = opened(visitor_of_kinds, a=TEXT)
    turn(page, "Cross-attention")
    expect(page.get_by_label("Translation (or output) to examine")).to_be_visible()
    page.get_by_label("Translation (or output) to examine").fill(TARGET)
    said(page, "Cross-attention shown.")
    mean = asked(visitor_of_kinds, layers=[-1])
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
    one = np.array(asked(visitor_of_kinds, layers=[0], heads=[2])["cross_attention"])[0, 0]
    np.testing.assert_allclose(found["weights"], one, atol=1e-6)


def test_norms_of_cross_attention(visitor_of_kinds: Visitor) -> None:
    page = opened(visitor_of_kinds, a=TEXT, target=TARGET, view="target", cross="0.2")
    said(page, "Cross-attention shown.")
    page.get_by_role("button", name="Norms", exact=True).click()
    expect(page).to_have_url(re.compile("measure=norms"))
    page.wait_for_function("() => !document.querySelector('.stale')")
    expect(page.locator("#panel table.links th").nth(2)).to_have_text("norm")
    found = json.loads(saved(page, "JSON")[0])
    told = asked(visitor_of_kinds, layers=[0], heads=[2], include=["norms"])
    np.testing.assert_allclose(found["norms"], np.array(told["cross_norms"])[0, 0], atol=1e-6)


def test_a_model_without_a_decoder_says_so(visitor: Visitor) -> None:
    page = visitor.open(visitor.state(a="one text", target="another"))
    said(page, "72 heads drawn.")
    turn(page, "One head")
    expect(page.get_by_role("tab", name="Cross-attention")).to_be_hidden()
    page = visitor.open(visitor.state(a="one text", target="another", view="target"))
    expect(page.get_by_text("This model has no decoder")).to_be_visible()


def test_an_old_target_is_not_shown_nor_saved_as_the_new(visitor_of_kinds: Visitor) -> None:
    page = opened(visitor_of_kinds, view="target", a=TEXT, target=TARGET)
    said(page, "Cross-attention shown.")
    found = everywhere(page, WIDTHS)
    files, network = Files(page), Network(page)
    enter_text(page, "w5 w6", "Translation (or output) to examine")
    network.asked()
    for one in seen(maps(page)):
        assert is_marked_old(one)
    files.try_to_save("JSON")
    network.release()
    said(page, "Cross-attention shown.")
    for content in [*(content for _, content in files.contents()), files.save("JSON")]:
        assert json.loads(content)["rows"] == ["w5", "w6", "</s>"]
    assert not found, sorted(found)
