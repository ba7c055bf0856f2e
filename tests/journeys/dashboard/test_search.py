"""View of a search: numbers equal the API's replies, and quality a formula by hand."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.journeys.dashboard.between import Network, failing, is_marked_old, told, turn, view
from tests.journeys.dashboard.browser import Visitor, rows_of, said
from tests.journeys.dashboard.test_accessibility import WIDTHS, everywhere
from tests.journeys.dashboard.test_use import saved

pytestmark = pytest.mark.e2e
QUERY = "How long do refunds take?"
ROWS = [
    ("1", "Eggs", "How long does it take\nto boil an egg?", "0"),
    ("2", "Refunds", 'We "refund" orders within five days.', "2"),
    ("3", "", "We ship to Norway, and to Sweden.", "0"),
    ("4", "Money", "Money is returned to your card.", "1"),
]
TEXTS = [f"{title} {text}".strip() for _, title, text, _ in ROWS]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a CSV file with semicolons, a byte order mark, and quotes and newlines in fields."""
    path = tmp_path / "results.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as written:
        writer = csv.writer(written, delimiter=";")
        writer.writerows([("rank", "title", "text", "relevance", "url")])
        writer.writerows([*row, "x"] for row in ROWS)
    return path


def ranked(api: httpx.Client, **fields: Any) -> Any:
    """Return the API's ranking of the file's results."""
    answer = api.post("/rank", json={"query": QUERY, "documents": TEXTS, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def results(page: Page) -> list[Locator]:
    """Return the results, the best first."""
    return view(page).get_by_role("list", name="Results, the best first").locator("li.result").all()


def score_of(result: Locator) -> float:
    return float(result.locator(".result-score > b").inner_text())


def dcg(gains: list[int]) -> float:
    """Return the sum of the gains, each divided by log2(1 + rank)."""
    return sum(gain / math.log2(1 + rank) for rank, gain in enumerate(gains, 1))


def test_a_file_is_ranked_and_explained(visitor: Visitor, api: httpx.Client, file: Path) -> None:
    page = visitor.open(visitor.state(view="search", q=QUERY))
    told(page, "5 results ranked and explained.")
    page.get_by_label("Open a file").set_input_files(file)
    said(page, "4 results ranked and explained.")
    expect(view(page)).to_contain_text(
        "read as CSV; title and text are ranked together; not used: url"
    )

    explained = ranked(api, explain="tokens")["results"]
    order = [result["index"] for result in explained]
    assert [score_of(one) for one in results(page)] == pytest.approx(
        [one["score"] for one in explained], abs=6e-5
    )
    for result, expected in zip(results(page), explained, strict=True):
        expect(result).to_contain_text(f"rank {ROWS[expected['index']][0]} in the list")
        values = [
            float(says.split(", ")[1])
            for says in (
                one.get_attribute("data-says") or "" for one in result.locator("button.mark").all()
            )
        ]
        rest = re.search(r"special tokens (-?[\d.]+)", result.inner_text())
        total = sum(values) + (float(rest[1]) if rest else 0)
        assert total == pytest.approx(expected["score"], abs=6e-5 * (len(values) + 1))
    best_text, offsets = TEXTS[order[0]], explained[0]["offsets"]
    place = [best_text[start:end] for start, end in offsets].index("orders")
    results(page)[0].get_by_role("button", name="orders,").hover()
    # the word is isolated from the direction of the number
    expected = "\N{FIRST STRONG ISOLATE}orders\N{POP DIRECTIONAL ISOLATE}"
    expected += f"  {explained[0]['shares'][place]:+.4f}"
    expect(results(page)[0].locator(".readout")).to_have_text(expected)

    gains = [int(ROWS[index][3]) for index in order]
    rows = {row[0]: row[1:] for row in rows_of(page, "table.quality")}
    best = dcg(sorted(gains, reverse=True))
    given = dcg([int(row[3]) for row in ROWS])
    assert float(rows["this ranking"][0]) == pytest.approx(dcg(gains) / best, abs=6e-5)
    assert float(rows["order of the list"][0]) == pytest.approx(given / best, abs=6e-5)
    assert rows["order of the list"][1:] == ["0.0000", "0.5000"]  # recall at 1 and at 3

    contrast = ranked(api, explain="contrast", compare=[order[3], order[1]])["contrast"]
    for place in (3, 1):
        view(page).get_by_role("button", name=f"Compare result {place + 1}").click()
    heading = page.get_by_role("heading", name="Why is result 4 below result 2?")
    expect(heading).to_be_focused()
    view(page).get_by_text("words with smaller differences").click()
    found = rows_of(page, "table.contrast-words")
    shown = [(row[0], float(row[3])) for row in found if row[0] != "special tokens"]
    expected = [(row["word"], row["difference"]) for row in contrast["words"]]
    assert [word for word, _ in shown] == [word for word, _ in expected]
    assert [value for _, value in shown] == pytest.approx([v for _, v in expected], abs=6e-5)

    assert not (violations := everywhere(page, WIDTHS)), sorted(violations)
    table = [*csv.DictReader(io.StringIO(saved(page, "CSV")[0].decode(), newline=""))]
    assert [(row["title"], row["text"]) for row in table] == [ROWS[index][1:3] for index in order]
    lines = [json.loads(line) for line in saved(page, "JSONL")[0].splitlines()]
    assert [line["score"] for line in lines] == pytest.approx([r["score"] for r in explained])
    assert json.loads(saved(page, "JSON")[0])["ndcg"] == pytest.approx(dcg(gains) / best)
    assert saved(page, "SVG")[0].startswith(b"<svg")
    assert saved(page, "PNG")[0].startswith(b"\x89PNG")
    page.reload()
    told(page, "4 results ranked and explained.")
    expect(page.get_by_role("heading", name="Why is result 4 below result 2?")).to_be_visible()


def test_a_word_is_left_out(visitor: Visitor, api: httpx.Client) -> None:
    """By pointer in a result, by keyboard in the query; all occurrences count."""
    texts = ["The refund of a refund.", "Refunds take days.", "An egg."]
    page = visitor.open(visitor.state(view="search", q=QUERY, results="\n".join(texts)))
    told(page, "3 results ranked and explained.")
    body = {"query": QUERY, "documents": texts}
    whole = {r["index"]: r["score"] for r in api.post("/rank", json=body).json()["results"]}
    rank = 1 + sorted(whole, key=lambda index: -whole[index]).index(0)
    result = results(page)[rank - 1]
    result.get_by_role("button", name="refund,").last.click()
    body["documents_without"] = [[[4, 10], [16, 22]], [], []]
    replies = api.post("/rank", json=body).json()["results"]
    place = [r["index"] for r in replies].index(0)
    without = result.locator(".without")
    expect(without).to_contain_text(f"without “refund”: {replies[place]['score']:.4f}")
    expect(without).to_contain_text(f"rank {place + 1}")
    expect(result.locator("button[aria-pressed=true].mark")).to_have_count(2)

    words = view(page).get_by_role("group", name="Words of the query").get_by_role("button")
    words.first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(words.nth(3)).to_be_focused()
    page.keyboard.press("Enter")
    del body["documents_without"]
    body["query_without"] = [[12, 19]]
    replies = api.post("/rank", json=body).json()["results"]
    order = sorted(whole, key=lambda index: -whole[index])
    for after, one in enumerate(replies, 1):
        shown = results(page)[order.index(one["index"])].locator(".without")
        expect(shown).to_contain_text(f"without “refunds”: {one['score']:.4f}")
        expect(shown).to_contain_text(f"rank {after}")
    page.keyboard.press("Enter")
    expect(view(page).locator(".without")).to_have_count(0)


def test_what_is_cut_or_unknown_is_said(visitor: Visitor) -> None:
    visitor.expected = ("status of 422",)
    long = f"{'word ' * 600}the very end"
    page = visitor.open(visitor.state(view="search", results=f"A cat.\n{long}\n𓀀 owl"))
    alert = view(page).get_by_role("alert")
    expect(alert).to_contain_text("No. 2 of the results has 605 tokens; at most 512 fit.")
    alert.get_by_role("button", name="Cut the text").click()
    told(page, "3 results ranked and explained.")
    badge = view(page).locator(".badge", has_text="Cut")
    expect(badge).to_contain_text(re.compile(r"Cut: 93 tokens are not read: “word .*…”"))
    # above the words, not below all 512
    expect(view(page).locator(".badge + .marked-text")).to_have_count(2)
    expect(view(page).locator(".badge", has_text="unknown")).to_contain_text(
        "One token is unknown to the model: “𓀀”"
    )


def test_what_a_ranking_lacks_is_said(visitor: Visitor) -> None:
    page = visitor.open(visitor.state(view="search", q="", results="{curly} words\nand more"))
    expect(view(page)).to_contain_text("2 results, one a line. Enter a query to rank them.")
    expect(view(page)).not_to_contain_text("The best two results are compared")
    field = page.get_by_role("textbox", name=re.compile("^Results"))
    field.fill("")
    expect(view(page)).to_contain_text("No results: type or paste some, or open a file.")
    field.fill("A single one.")
    page.get_by_label("Query").fill("one")
    told(page, "1 result ranked and explained.")
    expect(page.get_by_role("button", name="Compare")).to_have_count(0)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", 'text,relevance\na,1\n"b', "Line 3: a quote is opened and never closed."),
        ("a.csv", "text,relevance\na,1\nb", "Line 3: it has 1 column, and the first line 2"),
        ("a.csv", "a,b\nc,d", "Line 1: no column is named text"),
        ("a.csv", "text;rank\na;first", "Line 2: its rank is not a whole number"),
        ("a.jsonl", '{"text": "a"}\n\n{"text": ', "Line 3: it is not JSON"),
        ("a.txt", "a\n" * 51, "There are 51 results, and at most 50 are ranked"),
        ("a.txt", b"\xff\xfe", "it is not UTF-8"),
    ],
)
def test_files_that_cannot_be_read(
    search: Page, tmp_path: Path, name: str, content: str | bytes, says: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    search.get_by_label("Open a file").set_input_files(path)
    expect(view(search).get_by_role("alert")).to_contain_text(says)


@pytest.fixture(scope="module")
def search(context: Any, dashboard_url: str) -> Any:
    """Yield a page with the search."""
    visitor = Visitor(context, dashboard_url)
    page = visitor.open(visitor.state(view="search"))
    told(page, "5 results ranked and explained.")
    yield page
    visitor.check()
    visitor.close()


def test_long_lists_are_kept_in_the_tab(visitor: Visitor) -> None:
    lines = [f"{place} {'x' * 450}" for place in range(30)]  # the long words are unknown tokens
    page = visitor.open(visitor.state(view="search"))
    page.get_by_role("textbox", name=re.compile("^Results")).fill("\n".join(lines))
    told(page, "30 results ranked and explained.")
    expect(view(page)).to_contain_text("too long for the address")
    page.wait_for_url(re.compile("stored=[0-9a-f]{16}"))
    page.reload()
    told(page, "30 results ranked and explained.")
    other = visitor.open(visitor.state(view="search", stored="0" * 16))
    expect(view(other).get_by_role("alert")).to_contain_text("Open their file again")


def test_scores_come_first_and_errors_pass(visitor: Visitor) -> None:
    """Old results are dim while new ones come; an error of one part leaves the others."""
    visitor.expected = ("ERR_CONNECTION_REFUSED", "status of 500")
    page = visitor.open(visitor.state(view="texts"))
    network = Network(page, "**/rank")
    turn(page, "Search")
    network.answer(network.asked()[0])
    told(page, "5 results ranked.")
    assert view(page).locator("button.mark").count() == 0, "shares have not come"
    network.release()
    told(page, "5 results ranked and explained.")
    expect(view(page).locator("button.mark").first).to_be_visible()
    network = Network(page, "**/rank")
    page.get_by_role("textbox", name="Query").fill("Eggs?")
    network.asked()
    assert is_marked_old(view(page).get_by_role("list", name="Results, the best first"))
    expect(page.get_by_role("button", name="JSON", exact=True)).to_be_disabled()
    network.release()
    told(page, "5 results ranked and explained.")
    with failing(page, "**/rank"):
        page.get_by_role("textbox", name="Query").fill("Eggs and Norway?")
        alert = view(page).get_by_role("alert")
        expect(alert).to_contain_text("The service does not answer")
        assert view(page).locator("li.result").count() == 0
    told(page, "5 results ranked and explained.")
    with failing(page, "**/rank", status=500):
        page.get_by_role("button", name="Compare result 5").click()
        page.get_by_role("button", name="Compare result 3").click()
        expect(view(page).locator(".contrast").get_by_role("alert")).to_be_visible()
        assert view(page).locator("li.result").count() == 5
    view(page).locator(".contrast").get_by_role("button", name="Try again").click()
    expect(view(page).locator(".contrast table").first).to_be_visible()
