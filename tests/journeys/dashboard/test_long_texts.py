"""Long texts: as fast as short ones, never the whole tensor, and maps labelled."""

from __future__ import annotations

import io
import re
import statistics
import xml.etree.ElementTree as ET
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import expect

from tests.journeys.dashboard.between import Files, cell_at, maps, told, wait
from tests.journeys.dashboard.browser import drawn, rows_of, said
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
FIRST_VIEW_BYTES, FINDER_BYTES = 2 * 10**6, 100 * 10**3
SHORT = " ".join(TEXT.split()[:14])
ATTEMPTS, MOVES = 4, 8
"""Numbers of attempts and moves: a busy machine may slow some, a slow page slows all."""

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


def hovered(page):
    """Return the median milliseconds from a mouse move to its paint, on heatmap and lines."""
    page.bring_to_front()
    heatmap = page.locator(".heatmap canvas").bounding_box()
    lines = page.locator(".lines canvas").bounding_box()
    in_view = min(lines["height"], page.viewport_size["height"] - lines["y"])
    places = []
    for i in range(1, 1 + MOVES):
        share = i / (1 + MOVES)
        across, down = 86 + share * (heatmap["width"] - 90), 70 + share * (heatmap["height"] - 74)
        places.append((heatmap["x"] + across, heatmap["y"] + down))
        places.append((lines["x"] + 30, lines["y"] + share * in_view))
    page.evaluate("() => { answers.length = 0; }")
    for count, place in enumerate(places, start=1):
        page.mouse.move(*place)
        page.wait_for_function("(count) => answers.length === count", arg=count)
    return statistics.median(page.evaluate("() => answers"))


def test_a_hover_answers_as_soon_as_with_few_tokens(visitor, api):
    pages = []
    for text in (SHORT, TEXT):
        page = visitor.open(visitor.state(view="head", layer=2, head=0, a=text))
        said(page, "Layer 2 head 0 shown.")
        page.evaluate(MEASURE)
        pages.append(page)
    expect(page.locator("#facts")).to_contain_text("512 tokens")
    assert max(visitor.attention_bytes()) < 2 * 2**20, "one head of one layer"
    requests, ratios = len(visitor.requests), []
    while len(ratios) < ATTEMPTS and min(ratios, default=9) > 3:
        few, many = map(hovered, pages)
        ratios.append(many / few)
    assert min(ratios) <= 3, ratios
    assert len(visitor.requests) == requests
    weights = one_map(api, TEXT, 2, 0)
    lines = page.locator(".lines canvas").bounding_box()
    page.mouse.move(lines["x"] + 30, lines["y"] + 8 + 13 * 20)
    expect(page.locator(".links caption")).to_contain_text("looks at")
    shown = [float(row[2]) for row in rows_of(page, ".links")]
    np.testing.assert_allclose(shown, np.sort(weights[20])[::-1][:10], atol=6e-5)


def test_all_heads_come_as_small_maps(visitor, api):
    page = visitor.open(visitor.state(sort="distance", a=TEXT))
    said(page, "72 heads drawn.")
    assert sum(visitor.attention_bytes()) < FIRST_VIEW_BYTES, "all maps in float16 have 37.7 MB"
    widths = page.evaluate(
        "() => [...document.querySelectorAll('.thumbnail canvas')].map((canvas) => canvas.width)"
    )
    assert widths == [96] * 72
    weights = one_map(api, TEXT, 1, 8)
    pool = torch.nn.AdaptiveMaxPool2d(96)
    largest = pool(torch.from_numpy(weights)[None])[0].numpy()
    pixels = page.evaluate(
        """() => [...document.querySelector('[aria-label^="Layer 1 head 8,"] canvas')
             .getContext('2d').getImageData(0, 0, 96, 96).data]"""
    )
    light = np.reshape(pixels, (96 * 96, 4))[:, :3].sum(1)
    assert np.diff(light[np.argsort(largest.ravel())]).max() <= 12
    assert np.corrcoef(light, largest.ravel() ** (np.log(4) / np.log(512)))[0, 1] < -0.97


FAINT = (216, 221, 224)
"""Colour of the frame around a map in the light theme."""


def plotted(page, ratio):
    """Return the sum of red, green and blue of each pixel within the frame of the heatmap."""
    canvas = page.locator(".heatmap canvas")
    data = canvas.evaluate(
        """(canvas) => [canvas.height, canvas.width,
             ...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"""
    )
    pixels = np.reshape(data[2:], (data[0], data[1], 4))[:, :, :3]
    framed = (pixels == FAINT).all(axis=2)
    columns, rows = (np.flatnonzero(framed.sum(axis) > 250 * ratio) for axis in (0, 1))
    inside = [np.diff(lines).argmax() for lines in (rows, columns)]
    top, left = rows[inside[0]] + 1, columns[inside[1]] + 1
    bottom, right = rows[inside[0] + 1], columns[inside[1] + 1]
    return pixels[top:bottom, left:right].sum(axis=2)


@pytest.mark.parametrize(("words", "ratio"), [(187, 1), (374, 1), (497, 1), (510, 2)])
def test_the_strongest_cells_are_seen_however_small(visitor, api, words, ratio):
    """A column of the map is darker than a pixel's other cells only if no cell is left out."""
    text = " ".join(TEXT.split()[:words])
    page = visitor.open(
        visitor.state(view="head", layer=3, head=1, a=text), device_scale_factor=ratio
    )
    said(page, "Layer 3 head 1 shown.")
    weights = one_map(api, text, 3, 1)
    light = plotted(page, ratio)
    size = len(weights)
    assert weights[:, 0].mean() > 0.2
    assert weights[:, 1:].mean(0).max() < 0.1
    assert light[:, 0].mean() < 0.7 * light[:, 8:].mean(0).min()
    if light.shape[0] < size:
        largest = torch.nn.AdaptiveMaxPool2d(light.shape)(torch.from_numpy(weights)[None])[0]
        assert np.diff(light.ravel()[np.argsort(largest.numpy().ravel())]).max() <= 12


def test_only_the_strongest_links_are_drawn_and_their_number_is_said(visitor, api):
    page = visitor.open(visitor.state(view="head", layer=2, head=0, a=TEXT, min=0))
    said(page, "Layer 2 head 0 shown.")
    strong = (one_map(api, TEXT, 2, 0) >= 0.004).sum()
    expect(page.locator("lines-map .says")).to_contain_text(
        f"The 800 strongest of {strong:,} links are drawn"
    )
    page.evaluate(f"location.hash = '{visitor.state(view='head', a=SHORT)}'")
    said(page, "Layer 0 head 0 shown.")
    expect(page.locator("lines-map .says")).to_have_count(0)


def test_other_texts_leave_no_nodes_behind(visitor):
    """The undo history of a field, which the browser keeps, is left out: texts come by address."""
    page = visitor.open(visitor.state(view="head"))
    told(page, "Layer 0 head 0 shown.")
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable")

    def nodes() -> int:
        for number in range(40):
            text = f"A cat number {number % 7} sat."
            page.evaluate(f"location.hash = '{visitor.state(view='head', a=text)}'")
            expect(page.locator(".old-text")).to_have_count(0)
            told(page, "Layer 0 head 0 shown.")
        client.send("HeapProfiler.collectGarbage")
        metrics = client.send("Performance.getMetrics")["metrics"]
        return next(int(one["value"]) for one in metrics if one["name"] == "Nodes")

    before = nodes()
    assert nodes() < before + 20


def test_the_finder_and_zoom(visitor, api):
    page = visitor.open(
        visitor.state(view="head", layer=1, head=8, a=TEXT, **{"from": 300, "to": 301})
    )
    expect(page.locator("#finder .chip")).to_have_count(8)
    assert min(visitor.attention_bytes()[1:]) < FINDER_BYTES
    assert sum(visitor.attention_bytes()) < FIRST_VIEW_BYTES, "statistics, one map, one row a head"
    names = page.locator("#finder .chip").all_inner_texts()
    layer, head = map(int, names[0].split()[0].split("·"))
    weight = one_map(api, TEXT, layer, head)[300, 301]
    assert float(names[0].split()[1]) == pytest.approx(weight, abs=1e-3)
    before = drawn(page)
    for _ in range(4):
        page.get_by_role("button", name="Zoom in").click()
    expect(page).to_have_url(re.compile("zoom=16"))
    wait(page, lambda: drawn(page) != before)
    page.locator(".heatmap canvas").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    expect(page.locator(".readout")).to_contain_text("→")


TEXT_TAG = "{http://www.w3.org/2000/svg}text"
NUMBERS = [str(i) for i in range(100, 158)]
"""Words of one token each: with the special tokens, 60 different tokens."""


def written(content):
    """Return all text of an SVG file."""
    return [node.text or "" for node in ET.fromstring(content).iter(TEXT_TAG)]


def test_the_tokens_of_sixty_are_named_in_files_and_on_the_screen(visitor):
    page = visitor.open(visitor.state(view="rollout", a=" ".join(NUMBERS)))
    told(page, "Rollout shown.")
    counts = Counter(written(Files(page).save("SVG")))
    assert all(counts[name] >= 2 for name in NUMBERS), "both ends of the lines"
    assert sum(counts[name] > 2 for name in NUMBERS) >= 20, "the heatmap names its tokens too"
    heatmap = maps(page).filter(visible=True).last
    names = ["[CLS]", *NUMBERS, "[SEP]"]
    corner = cell_at(page, heatmap, names, 0, 0)
    page.mouse.move(5, 5)
    box = heatmap.bounding_box()
    image = np.array(Image.open(io.BytesIO(heatmap.screenshot())).convert("L")).astype(int)
    left, top = (int(corner[0] - box["x"]) - 8, int(corner[1] - box["y"]))
    beside = image[top : top + int(0.8 * box["width"]), :left]
    inked = (np.abs(beside - np.median(beside)) > 40).any(axis=1)
    tenths = [part.any() for part in np.array_split(inked, 10)]
    assert sum(tenths) >= 8, "names stand along the rows"


def test_files_say_what_colours_and_axes_mean(visitor, animal):
    page = visitor.open(visitor.state(view="head", layer=3, head=1))
    told(page, "Layer 3 head 1 shown.")
    texts = written(Files(page).save("SVG"))
    numbers = [float(text) for text in texts if re.fullmatch(r"[01](\.\d+)?", text)]
    assert 0 in numbers, "the colour bar begins at nothing"
    assert max(numbers) == pytest.approx(animal.weights[3, 1].max(), abs=0.02)
    assert sum(bool(re.search(r"look|from|to\b", text)) for text in texts[1:]) >= 2, "two axes"
