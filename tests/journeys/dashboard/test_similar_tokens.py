"""Similar tokens in *Many texts*: cosines equal those of transformers' hidden states."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from playwright.sync_api import Locator, Page, expect

from tests.journeys.dashboard.between import Files, Network, failing, told, view, wait
from tests.journeys.dashboard.browser import Visitor, rows_of
from tests.journeys.dashboard.test_accessibility import WIDTHS, everywhere
from tests.journeys.dashboard.test_texts import TEXTS as MORE_TEXTS
from tests.journeys.dashboard.test_use import saved

pytestmark = pytest.mark.e2e
TEXT = "They sat on the river bank."
TOKEN = "bank"
TEXTS = [
    "He robbed a bank, and hid on the bank of the river.",
    f"{'so ' * 80}many banks{' and so on' * 80}.",
    "جلسنا على ضفة النهر.",
    *MORE_TEXTS,
]
TABLE = "#panel table.similar"
LAYERS, FEATURES_OF_A_HEAD = 6, 32
Key = tuple[int, int]


@contextmanager
def switched_off(model: Any, layer: int, head: int) -> Iterator[None]:
    """Set a head's output to zero before the output projection."""
    columns = slice(head * FEATURES_OF_A_HEAD, (head + 1) * FEATURES_OF_A_HEAD)

    def silence(_: Any, given: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        (context,) = given
        context = context.clone()
        context[..., columns] = 0
        return (context,)

    hook = model.encoder.layer[layer].attention.output.dense.register_forward_pre_hook(silence)
    yield
    hook.remove()


def cosines(reference: Any, layer: int) -> dict[Key, float]:
    """Return each token's cosine with TOKEN of TEXT, by the number of its text and its place."""
    tokenizer, model = reference

    def states(text: str) -> tuple[list[int], torch.Tensor]:
        encoded = tokenizer(text, return_tensors="pt", return_special_tokens_mask=True)
        special = encoded.pop("special_tokens_mask")[0]
        with torch.no_grad():
            hidden = model(**encoded, output_hidden_states=True).hidden_states[layer][0]
        return [i for i, mask in enumerate(special) if not mask], hidden.double()

    query = states(TEXT)[1][tokenizer(TEXT).tokens().index(TOKEN)]
    found = {}
    for number, text in enumerate(TEXTS, 1):
        places, hidden = states(text)
        values = torch.nn.functional.cosine_similarity(hidden, query[None], dim=1)
        found |= {(number, i): float(values[i]) for i in places}
    return found


def strip(page: Page) -> Locator:
    return view(page).get_by_role("group", name="Tokens: choose one to find similar ones")


def compared(page: Page, count: int, token: str = TOKEN) -> None:
    told(page, re.compile(rf"shown\. {count} tokens compared with {token}\.$"))


def check(page: Page, expected: dict[Key, float], listed: int) -> list[dict[str, Any]]:
    """Check the closest tokens on the page and in its file, and return those of the file."""
    found: list[dict[str, Any]] = json.loads(saved(page, "JSON")[0])["similar"]["closest"]
    best = sorted(expected.values(), reverse=True)[:listed]
    assert [one["cosine"] for one in found] == pytest.approx(best, abs=2e-5)
    assert [one["cosine"] for one in found] == pytest.approx(
        [expected[one["number"], one["index"]] for one in found], abs=2e-5
    )
    assert [float(row[1]) for row in rows_of(page, TABLE)] == pytest.approx(best, abs=7e-5)
    marked = page.locator(f"{TABLE} .linked").all_inner_texts()
    assert marked == [one["text"][one["start"] : one["end"]] for one in found]
    assert all(one["text"] == TEXTS[one["number"] - 1] for one in found)
    return found


def test_closest_tokens_of_a_layer(visitor: Visitor, transformers_reference: Any) -> None:
    page = visitor.open(visitor.state(view="texts", a=TEXT, many="\n".join(TEXTS)))
    strip(page).get_by_role("button", name="river", exact=True).click()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    last = cosines(transformers_reference, LAYERS)
    compared(page, len(last))
    check(page, last, 20)
    expect(view(page)).to_contain_text(f"The 20 closest of {len(last)} tokens to bank.")

    view(page).get_by_label("Hidden states after").select_option(label="layer 1")
    compared(page, len(last))
    view(page).get_by_role("button", name="Show 20 more").click()
    expected = cosines(transformers_reference, 2)
    found = check(page, expected, 40)
    files = Files(page)
    rows = list(csv.DictReader(files.save("CSV").decode().splitlines()))
    assert [{key: str(value) for key, value in one.items()} for one in found] == rows
    long = next(i for i, one in enumerate(found) if one["number"] == 2)
    assert len(rows_of(page, TABLE)[long][0]) < 140, "its context alone"
    assert not (violations := everywhere(page, WIDTHS)), sorted(violations)

    page.reload()
    compared(page, len(last))
    check(page, expected, 40)
    page.locator(f"{TABLE} a").first.click()
    told(page, "Layer 0 head 0 shown.")
    assert json.loads(saved(page, "JSON")[0])["texts"] == [found[0]["text"]]


def test_heads_stay_off_and_tokens_are_chosen_by_touch(
    visitor: Visitor, transformers_reference: Any
) -> None:
    state = visitor.state(view="texts", a=TEXT, many="\n".join(TEXTS), off="3.1")
    page = visitor.open(state, has_touch=True, viewport={"width": 390, "height": 844})
    token = strip(page).get_by_role("button", name=TOKEN)
    token.tap()
    with switched_off(transformers_reference[1], 3, 1):
        expected = cosines(transformers_reference, LAYERS)
    compared(page, len(expected))
    check(page, expected, 20)
    token.tap()
    expect(page.locator(TABLE)).to_have_count(0)


def test_right_to_left(visitor: Visitor) -> None:
    page = visitor.open(visitor.state(view="texts", a=TEXTS[2], many="\n".join(TEXTS[:3]), like=1))
    told(page, re.compile("tokens compared with"))
    expect(strip(page)).to_have_attribute("dir", "rtl")
    row = page.locator(f"{TABLE} tr", has_text="جلسنا").first.locator("bdi")
    assert row.evaluate("(node) => getComputedStyle(node).unicodeBidi") == "isolate"
    assert row.text_content() == TEXTS[2]


def test_progress_stop_errors_and_other_layers(visitor: Visitor) -> None:
    visitor.expected = ("status of 500",)
    page = visitor.open(visitor.state(view="texts", a=TEXT, many="\n".join(TEXTS)))
    token = strip(page).get_by_role("button", name=TOKEN)
    with failing(page, "**/encode", status=500):
        token.click()
        expect(view(page).locator(".part-problem")).to_be_visible()
    network = Network(page, "**/encode")
    view(page).get_by_role("button", name="Try again").click()
    network.answer(network.asked(1)[0])
    network.answer(network.asked(2)[1])
    network.asked(3)
    expect(view(page).get_by_text(f"16 of {len(TEXTS)}")).to_be_visible()
    cancelled: list[str] = []
    page.on("requestfailed", lambda request: cancelled.append(request.url))
    view(page).get_by_label("Hidden states after").select_option(label="embeddings")
    wait(page, lambda: cancelled)
    network.answer(network.asked(4)[3])
    network.answer(network.asked(5)[4])
    network.asked(6)
    view(page).get_by_role("button", name="Stop").click()
    expect(view(page)).to_contain_text(f"Stopped after 16 of {len(TEXTS)} texts.")
    network.release()
    view(page).get_by_role("button", name="Compare all texts").click()
    told(page, re.compile("tokens compared with bank"))
    assert "Stopped" not in view(page).inner_text()
