"""The dashboard at 512 tokens: quick to answer, and never more than a part of the tensor."""

from __future__ import annotations

import itertools
import re
import statistics

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.journeys.dashboard.browser import rows_of, said
from tests.journeys.dashboard.oracle import one_map

pytestmark = pytest.mark.e2e

WORDS = (
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "many",
    "birds",
)
TEXT = " ".join(WORDS[(7 * i + i // 5) % len(WORDS)] for i in range(510))
MOST_BYTES = 9 * 2**20
ATTEMPTS = 4
"""Other work on the machine may spoil some of them; a slow page spoils all."""

MEASURE = """
() => {
  window.answers = [];
  let moved = null;
  const readout = document.querySelector('.readout');
  const caption = document.querySelector('.links caption');
  addEventListener('pointermove', () => { moved = performance.now(); }, { capture: true });
  const answered = () => {
    if (moved === null) return;
    const from = moved;
    moved = null;
    const painted = () => answers.push(performance.now() - from);
    requestAnimationFrame(() => requestAnimationFrame(painted));
  };
  for (const node of [readout, caption]) {
    new MutationObserver(answered).observe(node, { childList: true, subtree: true });
  }
}
"""


def test_a_hover_answers_within_100_ms(visitor, api):
    page = visitor.open(visitor.state(view="head", layer=2, head=0, a=TEXT))
    said(page, "Layer 2 head 0 shown.")
    expect(page.locator("#facts")).to_contain_text("512 tokens")
    assert max(visitor.attention_bytes()) < 2 * 2**20, "one head of one layer"
    page.evaluate(MEASURE)
    heatmap = page.locator(".heatmap canvas").bounding_box()
    lines = page.locator(".lines canvas").bounding_box()
    attempts = []
    for _ in range(ATTEMPTS):
        page.evaluate("() => { answers.length = 0; }")
        for i in range(12):
            page.mouse.move(heatmap["x"] + 100 + 25 * i, heatmap["y"] + 90 + 20 * i)
            page.wait_for_timeout(60)
            page.mouse.move(lines["x"] + 30, lines["y"] + 8 + 40 * i)
            page.wait_for_timeout(60)
        answers = sorted(page.evaluate("() => answers"))
        assert len(answers) >= 20
        attempts.append((statistics.median(answers), answers[int(0.9 * len(answers))]))
        half, most = attempts[-1]
        if half <= 60 and most <= 100:
            break
    else:
        pytest.fail(f"medians and 90th percentiles in ms: {attempts}")
    weights = one_map(api, TEXT, 2, 0)
    page.mouse.move(lines["x"] + 30, lines["y"] + 8 + 13 * 20)
    expect(page.locator(".links caption")).to_contain_text("looks at")
    shown = [float(row[2]) for row in rows_of(page, ".links")]
    np.testing.assert_allclose(shown, np.sort(weights[20])[::-1][:10], atol=6e-5)


def test_all_heads_come_layer_by_layer(visitor, api):
    page = visitor.open(visitor.state(sort="distance", a=TEXT))
    said(page, "72 heads drawn.", seconds=20)
    assert max(visitor.attention_bytes()) < MOST_BYTES, "all maps in float16 have 37.7 MB"
    assert len(visitor.attention_bytes()) >= 6
    widths = page.evaluate(
        "() => [...document.querySelectorAll('.thumbnail canvas')].map((canvas) => canvas.width)"
    )
    assert widths == [96] * 72
    weights = one_map(api, TEXT, 1, 8)
    tile = np.arange(512) * 96 // 512
    largest = np.zeros((96, 96))
    for row, column in itertools.product(range(512), range(512)):
        place = tile[row], tile[column]
        largest[place] = max(largest[place], weights[row, column])
    pixels = page.evaluate(
        """() => [...document.querySelector('[aria-label^="Layer 1 head 8,"] canvas')
             .getContext('2d').getImageData(0, 0, 96, 96).data]"""
    )
    light = np.reshape(pixels, (96 * 96, 4))[:, :3].sum(1)
    assert np.diff(light[np.argsort(largest.ravel())]).max() <= 12
    assert np.corrcoef(light, largest.ravel() ** (np.log(4) / np.log(512)))[0, 1] < -0.97


def test_the_finder_and_zoom(visitor, api):
    page = visitor.open(
        visitor.state(view="head", layer=1, head=8, a=TEXT, **{"from": 300, "to": 301})
    )
    expect(page.locator("#finder .chip")).to_have_count(8, timeout=20_000)
    assert max(visitor.attention_bytes()) < MOST_BYTES
    names = page.locator("#finder .chip").all_inner_texts()
    layer, head = map(int, names[0].split()[0].split("·"))
    weight = one_map(api, TEXT, layer, head)[300, 301]
    assert float(names[0].split()[1]) == pytest.approx(weight, abs=1e-3)
    canvas = page.locator(".heatmap canvas")
    before = canvas.screenshot()
    for _ in range(4):
        page.get_by_role("button", name="Zoom in").click()
    expect(page.get_by_role("button", name="Zoom in")).to_be_visible()
    expect(page).to_have_url(re.compile("zoom=16"))
    assert canvas.screenshot() != before
    canvas.focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    expect(page.locator(".readout")).to_contain_text("→")
