"""Screenshots of docs/dashboard.md: `python -m tests.journeys.dashboard.screenshots [FOLDER]`.

With the folder that `python -m examples.spelled_dates.train` wrote, those of cross-attention and of
two models too. With the folder of a DINOv2-small only that of a picture, which is a photograph by
the United States Navy, in the public domain, that matplotlib ships.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

import matplotlib as mpl
from PIL import Image
from playwright.sync_api import Page, expect

from tests.journeys.conftest import running
from tests.journeys.dashboard.browser import DEFAULT, Visitor, launched, traffic
from tests.journeys.dashboard.test_long_texts import TEXT

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "dashboard"
WIDE = {"width": 1360, "height": 900}
NARROW = {"width": 390, "height": 844}
RESULTS = """rank,title,text,relevance
1,Refunds,We refund orders within five days.,2
2,Letters,Refunds are a topic of many letters to the editor.,0
3,Payments,Money is returned to your card in about a week.,2
4,Shipping,We ship to Norway and Sweden.,0"""
PICTURES = {
    "heads": ("light", WIDE, {}),
    "head": ("light", WIDE, {"view": "head", "layer": 3, "head": 1, "pins": 10}),
    "overlay": (
        "light",
        WIDE,
        {"view": "head", "layer": 3, "head": 1, "overlaid": "5.11,5.3", "pins": 10},
    ),
    "compared": ("light", WIDE, {"view": "compared", "layer": 3, "head": 1, "strongest": 1}),
    "words": ("dark", WIDE, {"view": "rollout", "words": 1, "bare": 1}),
    "ablation": (
        "light",
        WIDE,
        {"view": "ablation", "layer": 3, "head": 1, "off": "0.2,1.8", "most": 0, "measured": 1},
    ),
    "comparison": ("dark", WIDE, {"view": "comparison", "layer": 3, "head": 1}),
    "pair": (
        "light",
        WIDE,
        {
            "a": "Where do cats sleep?",
            "b": "A cat sleeps anywhere.",
            "view": "head",
            "layer": 2,
            "head": 8,
            "live": 1,
        },
    ),
    "why": (
        "light",
        WIDE,
        {
            "view": "why",
            "a": "A man is playing a guitar.",
            "c": "Someone plays an instrument.",
        },
    ),
    "search": ("light", WIDE, {"view": "search", "results": RESULTS, "gone": "q:12-19"}),
    "texts": ("light", WIDE, {"view": "texts", "layer": 3, "head": 1}),
    "long": ("dark", WIDE, {"sort": "distance", "a": TEXT}),
    "narrow": ("dark", NARROW, {"view": "head", "layer": 3, "head": 1, "pins": 10}),
}


TRAINED = "sold before 1880 05 16 , read until 1866 06 19"
OF_THE_EXAMPLE = {
    "target": {
        "view": "target",
        "a": TRAINED,
        "target": "sixteenth may eighteen eighty nineteenth june eighteen sixty six",
    },
    "models": {"view": "models", "a": TRAINED, "words": 1},
}
"""Sentence that the trained example has not seen, whose target has another order."""


OF_A_PICTURE = ("dark", WIDE, {"view": "head", "layer": 8, "head": 4, "from": 56, "to": 59})


def take(page: Page, path: Path) -> None:
    """Save a screenshot of the page, in a palette of 256 colours."""
    expect(page.locator("#status")).to_have_text(
        re.compile(r"(drawn|shown|alone|explained|overlaid)\."), timeout=30_000
    )
    assert page.viewport_size is not None
    height = page.evaluate("() => document.documentElement.scrollHeight")
    page.set_viewport_size(page.viewport_size | {"height": height})
    page.wait_for_timeout(500)
    image = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    image.quantize(256, kmeans=1, dither=Image.Dither.NONE).save(path, optimize=True)


def take_picture(folder: str) -> None:
    """Take the screenshot of a picture, in a model for pictures."""
    scheme, size, state = OF_A_PICTURE
    photograph = Path(mpl.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    with launched() as browser, running("--model", folder) as url:
        context = browser.new_context(color_scheme=scheme, viewport=size)
        visitor = Visitor(context, url)
        page = visitor.open(visitor.state(**state))
        page.get_by_label("Another picture", exact=True).set_input_files(photograph)
        take(page, FOLDER / "picture.png")
        visitor.check()


def main() -> None:
    """Take all screenshots."""
    FOLDER.mkdir(exist_ok=True)
    if any((Path(folder) / "preprocessor_config.json").exists() for folder in sys.argv[1:]):
        take_picture(sys.argv[1])
        return
    with launched() as browser, running("--max-length", "512") as url:
        for name, (scheme, size, state) in PICTURES.items():
            context = browser.new_context(color_scheme=scheme, viewport=size)
            visitor = Visitor(context, url)
            measured = state.pop("measured", 0)
            page = visitor.open(visitor.state(**state))
            if measured:
                page.get_by_role("button", name="Measure each head alone").click()
                expect(page.locator("#status")).to_have_text(
                    "Each head measured alone.", timeout=60_000
                )
            busy = traffic(url, 0.01) if state.get("live") else contextlib.nullcontext()
            with busy:
                page.wait_for_timeout(20_000 if state.get("live") else 0)
                take(page, FOLDER / f"{name}.png")
            visitor.check()
            context.close()
    for folder in sys.argv[1:]:
        with launched() as browser, running("--model", folder, "--model", DEFAULT) as url:
            context = browser.new_context(color_scheme="light", viewport=WIDE)
            visitor = Visitor(context, url)
            for name, state in OF_THE_EXAMPLE.items():
                take(visitor.open(visitor.state(**state)), FOLDER / f"{name}.png")
            visitor.check()


if __name__ == "__main__":
    main()
