"""Norms of the heads' contributions, in every view of weights, against transformers."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Page, expect

from tests.journeys.dashboard import axe
from tests.journeys.dashboard.browser import Visitor, rows_of, said
from tests.journeys.dashboard.test_use import saved

pytestmark = pytest.mark.e2e
TEXT = "A man is playing a guitar."
LAYER, HEAD = 3, 5


def norms(reference: Any, layer: int, head: int) -> Any:
    """Return norms `[S, S]`: a head's weights times the norms of its projected values."""
    tokenizer, model = reference
    attention = model.encoder.layer[layer].attention
    size = model.config.hidden_size // model.config.num_attention_heads
    own = slice(head * size, (head + 1) * size)
    with torch.no_grad():
        told = model(
            **tokenizer(TEXT, return_tensors="pt"),
            output_hidden_states=True,
            output_attentions=True,
        )
        values = attention.self.value(told.hidden_states[layer])[0][:, own]
        added = values @ attention.output.dense.weight[:, own].T
        return (told.attentions[layer][0, head] * added.norm(dim=-1)[None, :]).numpy()


def exported(page: Page) -> dict[str, Any]:
    """Return the content that the page saves as JSON."""
    found: dict[str, Any] = json.loads(saved(page, "JSON")[0])
    return found


def test_norms_of_a_head(visitor: Visitor, transformers_reference: Any) -> None:
    expected = norms(transformers_reference, LAYER, HEAD)
    page = visitor.open(visitor.state(a=TEXT, view="head", layer=LAYER, head=HEAD))
    said(page, f"Layer {LAYER} head {HEAD} shown.")
    weights = exported(page)["weights"]
    page.get_by_role("button", name="Norms", exact=True).click()
    expect(page).to_have_url(re.compile("measure=norms"))
    said(page, f"Layer {LAYER} head {HEAD} norms shown.")
    found = exported(page)
    np.testing.assert_allclose(found["norms"], expected, rtol=1e-4, atol=1e-6)
    assert "weights" not in found
    assert np.abs(expected - weights).max() > 0.1, "norms are no weights"
    told = rows_of(page, "#panel table.links")
    largest = np.sort(expected.ravel())[::-1]
    np.testing.assert_allclose([float(row[2]) for row in told], largest[: len(told)], atol=6e-5)
    expect(page.locator("#panel table.links th").last).to_have_text("norm")
    expect(page.locator(".readout")).to_contain_text(f"{largest[0]:.2g}")
    assert axe.violations(page) == []

    page.get_by_role("tab", name="Rollout").click()
    said(page, "Norm rollout shown.")
    rollout = np.array(exported(page)["weights"])
    np.testing.assert_allclose(rollout.sum(axis=1), 1, atol=1e-4)
    asked = {"inputs": TEXT, "include": ["norm_rollout"]}
    reply = page.request.post(f"{visitor.url}/attention", data=asked).json()
    np.testing.assert_allclose(rollout, reply["results"][0]["norm_rollout"], atol=1e-6)
    page.get_by_role("button", name="Weights", exact=True).click()
    said(page, "Rollout shown.")


def test_what_thumbnails_colours_mean(visitor: Visitor) -> None:
    page = visitor.open(visitor.state(a=TEXT))
    said(page, "72 heads drawn.")
    legend = page.locator(".colour-legend")
    half = 0.5 ** (
        np.log(9) / np.log(4)
    )  # nine tokens: uniform attention is a quarter of the scale
    expect(legend).to_contain_text(f" = {half:.2g}")
    page.get_by_label("Linear colours", exact=True).check()
    expect(legend).to_contain_text(" = 0.50")
