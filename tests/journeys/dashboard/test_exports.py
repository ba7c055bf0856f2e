"""Maps, on the screen and as files, are labelled: tokens, axes, colours, model."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from tests.journeys.dashboard.between import Files, cell_at, maps, told

pytestmark = pytest.mark.e2e
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
