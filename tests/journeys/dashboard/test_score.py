"""A cross-encoder on its page: the score of a pair, and the way to what explains it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, expect
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.journeys.conftest import running
from tests.journeys.dashboard.between import told
from tests.journeys.dashboard.browser import VIEWER, Visitor

pytestmark = pytest.mark.e2e
PAIR = "where is the cat", "the cat sat near a red mat"


def test_a_cross_encoder_shows_the_score_of_a_pair(
    browser: Browser, cross_checkpoint: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(cross_checkpoint)
    model = AutoModelForSequenceClassification.from_pretrained(cross_checkpoint).eval()
    with torch.no_grad():
        logit = model(**tokenizer(*PAIR, return_tensors="pt")).logits[0, 0]
    with (
        running("--model", str(cross_checkpoint)) as url,
        browser.new_context(**VIEWER) as context,
    ):
        visitor = Visitor(context, url)
        page = visitor.open(visitor.state(view="head", a=PAIR[0]))
        told(page, "Layer 0 head 0 shown.")
        composer = page.get_by_role("region", name="Input")
        expect(composer).to_contain_text("This model scores pairs")
        page.get_by_label("Sentence pair").check()
        page.get_by_label("Second text of the pair").fill(PAIR[1])
        expect(composer.get_by_text(f"{torch.sigmoid(logit):.4f}")).to_be_visible()
        expect(composer).not_to_contain_text("This model")
        visitor.expected = ("status of 424", "status of 422")  # the sample results are too long
        page.get_by_role("tab", name="Why alike?").click()
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text(f"/explain does not explain {cross_checkpoint.name}")
        expect(alert.get_by_role("button", name="Try again")).to_have_count(0)
        alert.get_by_role("button", name="Open Search").click()
        expect(page.get_by_role("tab", name="Search")).to_have_attribute("aria-selected", "true")
        visitor.check()
        visitor.close()
