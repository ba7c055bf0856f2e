"""Input of texts: the history, right-to-left writing, and a service with keys."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.journeys.dashboard.between import enter_text, maps, pointed_at, told, turn, view

pytestmark = pytest.mark.e2e
HEBREW = "שלום עולם טוב"
AS_SEEN = """(node) => {
  const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
  const letters = [];
  while (walker.nextNode()) {
    const text = walker.currentNode;
    for (let i = 0; i < text.length; i += 1) {
      const range = document.createRange();
      range.setStart(text, i);
      range.setEnd(text, i + 1);
      const {left, width} = range.getBoundingClientRect();
      if (width) letters.push([left, text.data[i]]);
    }
  }
  return letters.sort(([a], [b]) => a - b).map(([, letter]) => letter).join('');
}"""
"""Script that returns a line's letters from left to right, as shown on the screen."""


def test_going_back_brings_the_text_before(visitor):
    page = visitor.open(visitor.state(view="head"))
    box = page.get_by_role("textbox", name="Text", exact=True)
    for text, tokens in (("Dogs bark.", 5), ("Cats sleep on beds.", 7)):
        enter_text(page, text)
        expect(page.get_by_text(re.compile(rf"\b{tokens} tokens"))).to_be_visible()
    page.go_back()
    expect(box).to_have_value("Dogs bark.")
    expect(page.get_by_text(re.compile(r"\b5 tokens"))).to_be_visible()
    page.go_forward()
    expect(box).to_have_value("Cats sleep on beds.")


def test_letters_typed_in_one_go_are_one_step(visitor):
    page = visitor.open(visitor.state(view="head", a="Dogs bark."))
    told(page, "Layer 0 head 0 shown.")
    turn(page, "Rollout")
    steps = page.evaluate("() => history.length")
    box = page.get_by_role("textbox", name="Text", exact=True)
    for text in ("Cats", "Cats sleep", "Cats sleep on beds."):
        box.fill(text)
    box.press("Enter")
    expect(page.get_by_text(re.compile(r"\b7 tokens"))).to_be_visible()
    assert page.evaluate("() => history.length") == steps + 1


def test_hebrew_is_written_from_the_right(visitor):
    page = visitor.open(visitor.state(view="head", a=HEBREW))
    box = page.get_by_role("textbox", name="Text", exact=True)
    assert box.evaluate("(node) => getComputedStyle(node).direction") == "rtl"
    enter_text(page, "Now English.")
    assert box.evaluate("(node) => getComputedStyle(node).direction") == "ltr"


def test_an_arrow_between_hebrew_words_leads_from_the_first_to_the_second(visitor):
    page = visitor.open(visitor.state(view="head", a=HEBREW, words=1))
    told(page, "Layer 0 head 0 shown.")
    maps(page).filter(visible=True).last.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    first, second = pointed_at(page)
    assert first in HEBREW.split()
    assert second in HEBREW.split()
    assert first != second
    told_link = view(page).get_by_text(re.compile(r" → .*\d\.\d{4}")).first
    seen = re.sub(r"\s", "", told_link.evaluate(AS_SEEN))
    assert re.fullmatch(rf"{first[::-1]}→{second[::-1]}\d\.\d{{4}}", seen), seen
