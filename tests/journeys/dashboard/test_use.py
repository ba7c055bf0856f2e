"""Use of the dashboard: links, history, keys, files, errors, injected strings, themes."""

from __future__ import annotations

import datetime
import io
import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.journeys.dashboard.between import SHOWN, set_option, tab_of, turn, wait
from tests.journeys.dashboard.browser import DEFAULT, drawn, rows_of, said
from tests.journeys.dashboard.oracle import FIRST_TEXT

pytestmark = pytest.mark.e2e

SVG = "{http://www.w3.org/2000/svg}"


def saved(page, kind):
    """Return the bytes of an exported file, and its name."""
    with page.expect_download() as download:
        page.get_by_role("button", name=kind, exact=True).click()
    path = download.value.path()
    return path.read_bytes(), download.value.suggested_filename


def test_a_link_restores_everything(visitor):
    page = visitor.open()
    page.get_by_role("textbox", name="Text", exact=True).fill("Cats purr because they are happy.")
    page.get_by_role("textbox", name="Text", exact=True).press("Enter")
    expect(page.locator("#facts")).to_contain_text("10 tokens")
    page.get_by_label("From token").select_option(label="they")
    page.get_by_label("To token").select_option(label="cats")
    set_option(page, "Merge word pieces")
    page.locator("#finder .chip").nth(1).click()
    page.get_by_label("Linear colours", exact=True).check()
    page.get_by_role("button", name="Zoom in").click()
    turn(page, "Ablation")
    page.get_by_role("group", name="Switch heads off").get_by_label("Layer 0 head 2, on").click()
    turn(page, "One head")
    expect(page.locator("#ablated")).to_be_visible()
    page.get_by_role("button", name="Live").click()
    heading = page.get_by_role("heading", name="Layer").first.inner_text()
    said(page, f"{heading.replace(' ·', '').replace('Head', 'head')} shown.")
    caption = page.locator(".links caption").inner_text()
    assert caption == "What “they” looks at"
    expect(page).to_have_url(re.compile(r"zoom=2%2C.*live=1"))
    address = page.url[page.url.index("#") :]
    again = visitor.open(address)
    said(again, f"{heading.replace(' ·', '').replace('Head', 'head')} shown.")
    expect(again.get_by_role("textbox", name="Text", exact=True)).to_have_value(
        "Cats purr because they are happy."
    )
    expect(tab_of(again, "One head")).to_have_attribute("aria-selected", "true")
    for name in ("Merge word pieces", "Linear colours"):
        expect(again.get_by_label(name, exact=True)).to_be_checked()
    expect(again.locator("#live")).to_be_visible()
    expect(again.locator("#ablated")).to_contain_text("One head is switched off (0·2)")
    chips = page.locator("#finder .chip").all_inner_texts()
    assert chips
    expect(again.locator("#finder .chip")).to_have_text(chips)
    assert rows_of(page, ".links") == rows_of(again, ".links")
    assert "heatmap, 9 by 9" in page.locator(".heatmap canvas").get_attribute("aria-label")
    wait(page, lambda: drawn(page) == drawn(again))


def test_back_and_forward(visitor):
    page = visitor.open()
    for name in ("Rollout", "Comparison", "One head"):
        turn(page, name)
    expect(page.get_by_role("heading", name="Layer 0 · Head 0")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Comparison", exact=True)).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Rollout")).to_be_visible()
    page.go_forward()
    expect(tab_of(page, "Comparison")).to_have_attribute("aria-selected", "true")


@pytest.mark.parametrize(
    "address",
    [
        "#view=nothing&layer=99999&head=-1&sort=constructor&min=x&off=9.9.9&zoom=0,0,0&pins=a",
        "#__proto__=1&view=head&layer=999&head=999&pins=99999&from=99999&to=5&zoom=64,9999,9999",
        "#sort=link&from=99&to=98&part=ab&up=1",
        "#view=head&sort=constructor",
        "#" + "%E0%A4%A&&==&a",
    ],
)
def test_a_broken_link_still_opens(visitor, address):
    page = visitor.open(address)
    expect(page.locator("#facts")).to_contain_text("tokens")
    expect(page.locator("#problem")).to_be_hidden()
    expect(page.locator(".thumbnail, .lines")).not_to_have_count(0)


def test_a_head_that_the_model_lacks_is_said_and_corrected(visitor):
    page = visitor.open("#view=head&layer=99&head=77")
    expect(page.get_by_text("The address names layer 99 head 77.")).to_be_visible()
    expect(page).to_have_url(re.compile("layer=5&head=11"))
    said(page, "Layer 5 head 11 shown.")
    turn(page, "Rollout")
    expect(page.get_by_text("The address names")).to_have_count(0)


def test_a_map_as_files(visitor, animal):
    page = visitor.open(visitor.state(view="head", layer=3, head=1, pins=10))
    said(page, "Layer 3 head 1 shown.")
    content, name = saved(page, "JSON")
    assert name == "headscope-layer-3-head-1.json"
    found = json.loads(content)
    assert (found["layer"], found["head"], found["texts"]) == (3, 1, [FIRST_TEXT])
    assert found["rows"] == found["columns"] == found["tokens"] == animal.tokens
    np.testing.assert_allclose(found["weights"], animal.weights[3, 1], atol=1e-6)
    assert found["statistics"]["entropy"] == pytest.approx(animal.statistics["entropy"][3, 1])
    content, name = saved(page, "SVG")
    root = ET.fromstring(content)
    texts = [node.text for node in root.iter(f"{SVG}text")]
    assert [texts.count(token) for token in ("animal", "tired")] == [4, 4], "both forms, both sides"
    links = list(root.iter(f"{SVG}path"))
    assert len(links) == (animal.weights[3, 1, 10] >= 0.02).sum(), "those from 0.02 on"
    strongest = max(links, key=lambda node: float(node.get("stroke-width")))
    assert float(strongest.get("stroke-opacity")) == pytest.approx(
        0.06 + animal.weights[3, 1, 10].max() / animal.weights[3, 1].max(), abs=0.01
    )
    content, name = saved(page, "PNG")
    image = Image.open(io.BytesIO(content)).convert("RGB")
    width, height = (float(root.get(side)) for side in ("width", "height"))
    assert image.size == pytest.approx((2 * width, 2 * height), abs=2)
    assert len(image.getcolors(maxcolors=image.width * image.height)) > 100


def test_a_page_for_a_colleague_needs_no_service_and_no_script(visitor):
    text = "A <b>bold</b> cat & a <script>dog</script>."
    page = visitor.open(visitor.state(view="head", a=text))
    said(page, "Layer 0 head 0 shown.")
    content, name = saved(page, "HTML")
    assert name == "headscope-layer-0-head-0.html"
    assert b"<script" not in content
    plain = page.context.browser.new_context(offline=True, java_script_enabled=False)
    other = plain.new_page()
    other.set_content(content.decode())
    assert other.locator("blockquote").inner_text() == text
    expect(other.locator("svg text", has_text=re.compile("^cat$"))).to_have_count(4)
    numbers = json.loads(other.locator("pre").text_content())
    assert numbers == json.loads(saved(page, "JSON")[0])
    plain.close()


def test_every_view_as_files(visitor, animal):
    page = visitor.open(visitor.state(layer=3, head=1, sort="entropy"))
    for name, status in SHOWN.items():
        page.wait_for_timeout(350)  # Chromium drops downloads after ten in a second
        turn(page, name)
        view = name.split()[-1].lower()
        said(page, status)
        found = json.loads(saved(page, "JSON")[0])
        assert found["view"] == view
        assert DEFAULT in found.values()
        if view == "heads":
            order = np.argsort(-animal.statistics["entropy"].ravel(), kind="stable")
            assert [12 * h["layer"] + h["head"] for h in found["heads"]] == order.tolist()
        if view == "rollout":
            np.testing.assert_allclose(found["weights"], animal.rollout, atol=1e-6)
        if view in ("ablation", "comparison"):
            np.testing.assert_allclose(found["maps"][0]["weights"], animal.weights[3, 1], atol=1e-6)
        root = ET.fromstring(saved(page, "SVG")[0])
        assert any(DEFAULT in (node.text or "") for node in root.iter(f"{SVG}text")), view
        pictures = {"heads": 73, "head": 2, "rollout": 2, "ablation": 6, "comparison": 6}[view]
        assert len(list(root.iter(f"{SVG}image"))) == pictures, "with bars of colours"
        image = Image.open(io.BytesIO(saved(page, "PNG")[0]))
        assert image.width > 600


def test_by_keyboard_alone(visitor, animal):
    page = visitor.open()
    said(page, "72 heads drawn.")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the view")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.locator(".thumbnail:focus").count():
            break
    expect(page.locator(":focus")).to_have_attribute("aria-label", re.compile("^Layer 0 head 0"))
    for key, name in [("ArrowRight", "0 head 1"), ("ArrowDown", "1 head 1"), ("End", "5 head 11")]:
        page.keyboard.press(key)
        expect(page.locator(":focus")).to_have_attribute("aria-label", re.compile(f"^Layer {name}"))
    page.keyboard.press("Enter")
    said(page, "Layer 5 head 11 shown.")
    page.get_by_role("group", name="Heads").locator("[aria-pressed=true]").focus()
    for key in ("ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
    said(page, "Layer 4 head 10 shown.")
    expect(page.locator(":focus")).to_have_attribute("aria-pressed", "true")
    page.locator(".lines canvas").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    token = animal.names[2]
    expect(page.locator(".links caption")).to_have_text(f"What “{token}” looks at")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("pins=2"))
    page.locator(".heatmap canvas").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    readout = page.locator(".readout")
    weight = animal.weights[4, 10, 3, 1]
    expect(readout).to_have_text(f"didn → the  {weight:.4f}")
    expect(readout).to_have_attribute("aria-live", "polite")
    page.keyboard.press("+")
    expect(page).to_have_url(re.compile("zoom=2"))
    page.keyboard.press("0")
    expect(page).not_to_have_url(re.compile("zoom"))
    tab_of(page, "One head").focus()
    page.keyboard.press("ArrowRight")
    expect(tab_of(page, "Query and key")).to_be_focused()
    expect(page.get_by_role("heading", name="Query and key")).to_be_visible()


ATTACKS = [
    "<img src=x onerror=alert(1)><script>alert(2)</script>\"'><svg/onload=alert(3)>",
    "javascript:alert(4) {{7*7}} ${alert(5)} </textarea></title><iframe src=javascript:alert(6)>",
    "\u202e\u0007\u200b &lt;b&gt; ]]> <!-- \U0001f600\u0301 [SEP] [CLS] %00 \\u003cscript\\u003e",
]


@pytest.mark.parametrize("text", ATTACKS)
def test_text_stays_text(visitor, text):
    page = visitor.open(visitor.state(a=text))
    said(page, "72 heads drawn.")
    for words in (False, True):
        turn(page, "All heads")
        set_option(page, "Merge word pieces", on=words)
        said(page, "72 heads drawn.")
        count = page.get_by_label("From token").locator("option").count()
        page.get_by_label("From token").select_option(index=2)
        page.get_by_label("To token").select_option(index=count - 2)
        page.locator("#finder .chip").first.click()
        said(page, re.sub(r".*?(\d+)·(\d+).*", r"Layer \1 head \2 shown.", page.title()))
        box = page.locator(".lines canvas").bounding_box()
        page.mouse.move(box["x"] + 30, box["y"] + 40)
        labels = page.get_by_label("From token").locator("option").all_inner_texts()
        assert {cell for row in rows_of(page, ".links") for cell in row[:2]} <= {
            label.strip() for label in labels
        }
        root = ET.fromstring(saved(page, "SVG")[0])
        assert {node.tag.removeprefix(SVG) for node in root.iter()} <= {
            *("svg", "g", "rect", "line", "path", "text", "image")
        }
        assert elements(page) == {"script": 2, "img": 1, "svg": 0, "iframe": 0, "style": 0}


def elements(page):
    """Return the number of elements of each kind that a text could inject."""
    kinds = page.evaluate("() => [...document.querySelectorAll('*')].map((node) => node.localName)")
    return {kind: kinds.count(kind) for kind in ("script", "img", "svg", "iframe", "style")}


def test_a_text_that_is_too_long(visitor):
    visitor.expected = ("status of 422",)
    page = visitor.open()
    said(page, "72 heads drawn.")
    page.get_by_role("textbox", name="Text", exact=True).fill("word " * 600)
    problem = page.get_by_role("alert")
    expect(problem).to_contain_text("602 tokens; at most 512 fit")
    assert not re.search(r"`|inputs|truncate|\[\d+\]", problem.inner_text()), "for people"
    turn(page, "Why alike?")
    expect(page.get_by_role("heading", name="Why alike?")).to_be_visible()
    expect(problem).to_be_visible()
    page.go_back()
    problem.get_by_role("button", name="Cut the text").click()
    expect(page.locator("#facts")).to_contain_text("512 tokens, cut")
    expect(problem).to_be_hidden()
    page.get_by_role("textbox", name="Text", exact=True).fill("Short again.")
    expect(page.locator("#facts")).to_contain_text("5 tokens")
    said(page, "72 heads drawn.")


@pytest.mark.parametrize("button", [True, False])
def test_a_service_that_is_busy_is_asked_again(visitor, button):
    visitor.expected = ("status of 429",)
    page = visitor.open()
    said(page, "72 heads drawn.")
    problem = page.get_by_role("alert")
    busy = {"title": "Overloaded", "detail": "the queue is full", "status": 429}
    page.route(
        "**/attention",
        lambda route: route.fulfill(
            status=429,
            headers={"content-type": "application/problem+json", "retry-after": "3"},
            body=json.dumps(busy),
        ),
    )
    page.get_by_role("textbox", name="Text", exact=True).fill("Another text.")
    expect(problem).to_contain_text("The queue is full. This page asks again in 3 s.")
    page.unroute("**/attention")
    if button:
        problem.get_by_role("button", name="Try again").click()
    expect(page.locator("#facts")).to_contain_text("5 tokens")
    expect(problem).to_be_hidden()


def test_what_is_no_longer_wanted_is_aborted(visitor):
    page = visitor.open()
    said(page, "72 heads drawn.")
    ended = []
    page.on("requestfailed", lambda request: ended.append(request.failure))
    waiting = []
    page.route("**/attention", lambda route: waiting.append(route))  # noqa: PLW0108 - wants a function
    for text in ("First.", "Second one.", "And now the third."):
        page.get_by_role("textbox", name="Text", exact=True).fill(text)
        page.get_by_role("textbox", name="Text", exact=True).press("Enter")
        page.wait_for_timeout(30)
    wait(page, lambda: len(waiting) == 3 and ended == ["net::ERR_ABORTED"] * 2)
    waiting[-1].continue_()
    page.unroute("**/attention")
    expect(page.locator("#facts")).to_contain_text("7 tokens")
    said(page, "72 heads drawn.")


def test_what_the_viewer_prefers(visitor):
    """The page follows the viewer's colour scheme and reduced motion."""
    grounds, moves = {}, {}
    for scheme, motion in (("light", "reduce"), ("dark", "no-preference")):
        page = visitor.open(color_scheme=scheme, reduced_motion=motion)
        said(page, "72 heads drawn.")
        grounds[scheme], moves[motion] = ground(page), moving(page)
    assert sum(grounds["light"]) > 650
    assert sum(grounds["dark"]) < 150
    assert moves == {"reduce": "0s", "no-preference": "0.12s"}
    thumbnail = "document.querySelectorAll('.thumbnail canvas')[2].toDataURL()"
    before = page.evaluate(thumbnail)
    page.locator("#theme-toggle").click()
    assert ground(page) == grounds["light"]
    wait(page, lambda: page.evaluate(thumbnail) != before)
    page.reload()
    said(page, "72 heads drawn.")
    assert ground(page) == grounds["light"], "the choice outlives the page"


def ground(page):
    """Return the page's background colour, as three numbers."""
    colour = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    return [int(part) for part in re.findall(r"\d+", colour)]


def moving(page):
    """Return the duration of a thumbnail's transition."""
    style = "getComputedStyle(document.querySelector('.thumbnail canvas'))"
    return page.evaluate(f"() => {style}.transitionDuration").split(",")[0]


def test_a_narrow_screen(visitor):
    page = visitor.open(
        visitor.state(layer=3, head=1, live=1, b="A second text."),
        viewport={"width": 360, "height": 740},
        has_touch=True,
    )
    for view, status in SHOWN.items():
        turn(page, view)
        said(page, status)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
        beyond = page.evaluate(
            """() => [...document.querySelectorAll('main button, main canvas, main table')]
                 .filter((node) => !node.closest('.scrolls, [popover]'))
                 .filter((node) => node.getBoundingClientRect().right > 361).length"""
        )
        assert beyond == 0, view


def test_the_live_panel(visitor, api):
    """The test moves the clock, so that rates are exact."""
    page = visitor.open(color_scheme="light")  # a clock is its context's, and outlives the page
    said(page, "72 heads drawn.")
    page.clock.install()
    page.clock.pause_at(datetime.datetime.now() + datetime.timedelta(hours=1))
    page.get_by_role("button", name="Live").click()
    expect(page.locator("#live")).to_contain_text("The service is ready.")
    requests = page.locator("[data-live=requests]")
    expect(requests).to_have_text("–")
    for seconds, sent, rate in [(1, 20, "20.0"), (2, 4, "12.0")]:
        for _ in range(sent):
            api.post("/encode", json={"inputs": "a", "outputs": ["pooled"]})
        page.clock.run_for(1000)
        expect(requests).to_have_text(rate)
        assert scrapes(visitor) == 1 + seconds
    assert re.fullmatch(r"[\d.]+ ms", page.locator("[data-live=time]").inner_text())
    page.get_by_role("button", name="Live").click()
    expect(page.locator("#live")).to_be_hidden()
    page.clock.run_for(5000)
    assert page.evaluate("fetch('/info').then((reply) => reply.status)") == 200
    assert scrapes(visitor) == 3


def scrapes(visitor):
    """Return the number of requests for the metrics."""
    return len([url for url in visitor.requests if url.endswith("/metrics")])
