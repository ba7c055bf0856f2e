"""Clicks and seconds of five tasks on the dashboard, each from a fresh page.

Run: python -m benchmarks.tasks [--rounds N]. Seconds are from the first action to the answer on the
page, without the time in which a person reads and aims; figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, expect

from benchmarks.harness.report import markdown
from benchmarks.page import launched, serving

LENGTH = 512
VIEWPORT = {"width": 1360, "height": 900}


class Hand:
    """Actions of a person on a page, counted."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = self.texts = 0

    def click(self, place: Locator) -> None:
        self.clicks += 1
        place.click()

    def button(self, name: str) -> None:
        """Click a button by the start of its name."""
        self.click(self.page.get_by_role("button", name=re.compile(f"^{re.escape(name)}")).first)

    def tab(self, name: str) -> None:
        self.click(self.page.get_by_role("tab", name=name))

    def type(self, field: str, text: str) -> None:
        """Type a text into a field, and commit it."""
        self.texts += 1
        box = self.page.get_by_label(field, exact=True)
        box.fill(text)
        box.press("Enter")

    def sees(self, text: str) -> None:
        """Wait until the page announces a text."""
        expect(self.page.locator("#status")).to_contain_text(re.compile(text))


def find_the_coreference_head(hand: Hand) -> None:
    """Find the head that links "it" to "animal", and open it."""
    hand.click(hand.page.locator("#finder .chip").first)
    hand.sees("Layer 3 head 1 shown")


def say_which_word_decides(hand: Hand) -> None:
    """Say which word decides the similarity of two texts of one's own."""
    hand.tab("Why alike?")
    hand.type("Text", "The film was good.")
    hand.type("Other text", "The film was not good.")
    hand.sees("explained")


def say_why_one_result_is_above_another(hand: Hand) -> None:
    """Say why the first of the results is above the third: the differences word by word."""
    hand.tab("Search")
    hand.sees("ranked and explained")
    hand.button("Compare result 1")
    hand.button("Compare result 3")
    expect(hand.page.get_by_role("table", name="Difference word by word")).to_be_visible()
    expect(
        hand.page.get_by_role("heading", name=re.compile("result [13].*result [13]"))
    ).to_be_visible()


def see_that_a_text_was_cut(hand: Hand) -> None:
    """Paste a text that is too long, and see how much of it the model reads."""
    hand.type("Text", "word " * 600)
    hand.button("Cut the text")
    expect(hand.page.locator("#facts")).to_contain_text(f"{LENGTH} tokens, cut")


def export_a_picture(hand: Hand) -> None:
    """Save a head's map as SVG for a paper."""
    hand.button("What does a head do?")
    hand.sees("shown")
    with hand.page.expect_download():
        hand.button("SVG")


TASKS: dict[str, Callable[[Hand], None]] = {
    "find the coreference head": find_the_coreference_head,
    "say which word decides a similarity": say_which_word_decides,
    "say why one result is above another": say_why_one_result_is_above_another,
    "see that a text was cut": see_that_a_text_was_cut,
    "export a picture for a paper": export_a_picture,
}


def timed(browser: Browser, url: str, task: Callable[[Hand], None]) -> tuple[Hand, float]:
    """Do a task on a fresh page, and return what it took."""
    with browser.new_context(viewport=VIEWPORT) as context:
        page = context.new_page()
        page.goto(url)
        hand = Hand(page)
        hand.sees("heads drawn")
        started = time.perf_counter()
        task(hand)
        return hand, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = []
    with serving(Path(__file__).parents[1], LENGTH) as service, launched() as browser:
        for name, task in TASKS.items():
            found = [timed(browser, service.url, task) for _ in range(options.rounds)]
            seconds = statistics.median(taken for _, taken in found)
            hand, _ = found[-1]
            rows.append((name, hand.clicks, hand.texts, f"{seconds:.2f}"))
    print(markdown(("", "clicks", "texts typed", "seconds"), rows))


if __name__ == "__main__":
    main()
