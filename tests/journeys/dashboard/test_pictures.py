"""Pictures in the dashboard: maps are where and what transformers computes, and nothing is kept."""

from __future__ import annotations

import base64
import io
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect
from transformers import CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

from model.artifact.manifest import Artifact
from testing.pictures import pixels, saved
from tests.journeys.conftest import running
from tests.journeys.dashboard import looking
from tests.journeys.dashboard.between import Files, told, turn, view
from tests.journeys.dashboard.browser import VIEWER, Visitor, rows_of
from tests.journeys.dashboard.test_accessibility import SHOWN, everywhere
from tests.tower_oracle import Side

pytestmark = pytest.mark.e2e
FILE = {"name": "grey.jpg", "mimeType": "image/jpeg", "buffer": looking.grey()}
HEAD = {"view": "head", "layer": 0, "head": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("looking")


@pytest.fixture(scope="module")
def weights(folder: Path) -> NDArray[np.float32]:
    """Return transformers' maps `[L, N, S, S]` of the picture."""
    return looking.maps_of(looking.write(folder), folder, FILE["buffer"])


@pytest.fixture(scope="module")
def visitors(
    browser: Browser,
    exported: Callable[..., Artifact],
    folder: Path,
    weights: NDArray[np.float32],
    clip_checkpoint: Path,
) -> Iterator[Visitor]:
    """Yield a visitor of a service of the model, and of a tiny CLIP."""
    assert weights.shape[-1] == 1 + looking.ROWS * looking.COLUMNS
    artifacts = [exported(folder, "looking"), exported(clip_checkpoint, "clip")]
    flags = [flag for one in artifacts for flag in ("--artifact", str(one.folder))]
    with (
        running(*flags) as url,
        browser.new_context(**VIEWER) as context,
    ):
        yield Visitor(context, url)


@pytest.fixture
def pictures(visitors: Visitor) -> Iterator[Visitor]:
    """Yield the visitor, and check at the end that it has no complaints."""
    visitors.expected = ()
    yield visitors
    visitors.check()
    visitors.complaints.clear()


def opened(
    pictures: Visitor,
    *,
    touch: bool = False,
    scheme: str = "light",
    query: str = "",
    file: Any = FILE,
    **state: Any,
) -> Page:
    """Open the page, which shows its example, and choose the picture."""
    options: dict[str, Any] = {"has_touch": True} if touch else {}
    if scheme != "light":
        options["color_scheme"] = scheme
    page = pictures.open(query + pictures.state(**state), **options)
    page.locator(".picture-name").wait_for()
    page.get_by_label("Another picture", exact=True).set_input_files(file)
    expect(page.locator(".picture-name")).not_to_have_text("Example")
    return page


def name_of(row: int, column: int) -> str:
    return f"row {row}, column {column}"


def patch_at(canvas: Locator, row: float, column: float) -> tuple[float, float]:
    """Return the corner of a patch, or with fractions a point in it, from the canvas's corner."""
    expect(canvas).to_have_attribute("width", re.compile("."))  # drawn: not of the default size
    width = canvas.evaluate("(it) => it.clientWidth")
    left, top, right, bottom = (edge * width / looking.SIZE[0] for edge in looking.CROP)
    return (
        left + column * (right - left) / looking.COLUMNS,
        top + row * (bottom - top) / looking.ROWS,
    )


def choose(page: Page, row: int, column: int, **how: Any) -> None:
    """Click a patch of the view's first picture."""
    canvas = view(page).get_by_role("img").first
    x, y = patch_at(canvas, row + 0.5, column + 0.5)
    canvas.click(position={"x": x, "y": y}, **how)


def shades(page: Page) -> NDArray[np.int64]:
    """Return the brightest grey value of each patch of the map on the screen, but for its edges."""
    canvas = view(page).get_by_role("img").first
    canvas.scroll_into_view_if_needed()
    page.mouse.move(2, 2)
    image = np.array(Image.open(io.BytesIO(canvas.screenshot())).convert("L")).astype(int)

    def brightest(row: int, column: int) -> int:
        left, top = patch_at(canvas, row + 0.1, column + 0.1)
        right, bottom = patch_at(canvas, row + 0.9, column + 0.9)
        return image[round(top) : round(bottom), round(left) : round(right)].max()

    columns = range(looking.COLUMNS)
    return np.array([[brightest(row, one) for one in columns] for row in range(looking.ROWS)])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_maps_lie_where_the_model_looks(
    pictures: Visitor, weights: NDArray[np.float32], scheme: str
) -> None:
    """For each head that looks at a known patch, this patch is shown, and the others are dimmed."""
    page = opened(pictures, scheme=scheme, **HEAD | {"from": looking.token(2, 5)})
    told(page, "Layer 0 head 1 shown.")
    expected = {0: looking.FIXED, 1: (2, 0), 2: (3, 5)}
    for head, patch in expected.items():
        page.get_by_role("button", name=re.compile(f"^Layer 0 head {head},")).click()
        told(page, f"Layer 0 head {head} shown.")
        found = shades(page)
        assert np.unravel_index(found.argmax(), found.shape) == patch, found
        assert found[patch] > 2 * np.median(found), found
        rows = {name: float(weight) for name, weight in rows_of(page, ".strongest")}
        row = weights[0, head, looking.token(2, 5)]
        assert rows["[CLS]"] == pytest.approx(row[0], abs=6e-5)
        assert rows[name_of(*patch)] == pytest.approx(row[looking.token(*patch)], abs=6e-5)
        assert row[1:].argmax() + 1 == looking.token(*patch)


def test_a_patch_is_chosen_by_click_keys_and_button(
    pictures: Visitor, weights: NDArray[np.float32]
) -> None:
    """The ranking of heads follows; the address has tokens and no picture, the browser neither."""
    page = opened(pictures, **HEAD)
    told(page, re.compile("^Layer 0 head 1 shown"))
    expect(page.get_by_text("From [CLS]", exact=True).first).to_be_visible()
    choose(page, 1, 2)
    expect(page).to_have_url(re.compile(rf"from={looking.token(1, 2)}\b"))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    told(page, "Layer 0 head 1 shown. From row 2, column 3.")
    expect(page).to_have_url(re.compile(rf"from={looking.token(2, 3)}\b"))
    page.keyboard.press("Shift+Home")
    page.keyboard.press("Shift+ArrowUp")
    expect(page).to_have_url(re.compile(rf"to={looking.token(1, 0)}\b"))
    page.get_by_role("button", name=re.compile("^To ")).click()
    choose(page, 2, 4)
    expect(page.locator(".ranking .chip").first).to_have_text(re.compile("^0·1 0.9"))
    row = weights[:, :, looking.token(2, 3), looking.token(2, 4)]
    best = [f"{i // 4}·{i % 4} {row.ravel()[i]:.3f}" for i in np.argsort(-row.ravel())]
    assert page.locator(".ranking .chip").all_inner_texts()[:4] == best[:4]
    page.get_by_role("button", name="[CLS]", exact=True).first.click()
    expect(page).to_have_url(re.compile(r"to=0\b"))
    assert len(page.url) < 120
    kept = "() => [localStorage.length, sessionStorage.length, document.cookie.length]"
    assert page.evaluate(kept) == [0, 0, 0]
    page.reload()
    expect(page.locator(".picture-name")).to_have_text("Example")


def test_all_heads_rollout_and_ablation(pictures: Visitor, weights: NDArray[np.float32]) -> None:
    page = opened(pictures, sort="link", **{"from": looking.token(0, 0), "to": looking.token(0, 1)})
    told(page, "8 heads drawn. From row 0, column 0 to row 0, column 1.")
    thumbnails = view(page).get_by_role("button", name=re.compile("^Layer")).all_inner_texts()
    link = weights[:, :, looking.token(0, 0), looking.token(0, 1)].ravel()
    assert [text.split()[0] for text in thumbnails][:2] == [
        f"{i // 4}·{i % 4}" for i in np.argsort(-link)[:2]
    ]
    turn(page, "Rollout")
    told(page, "Rollout shown.")
    mixed = weights.mean(1) + np.eye(weights.shape[-1])
    mixed /= mixed.sum(-1, keepdims=True)
    rows = {name: float(weight) for name, weight in rows_of(page, ".strongest")}
    rollout = (mixed[1] @ mixed[0])[looking.token(0, 0)]
    assert rows[name_of(0, 1)] == pytest.approx(rollout[looking.token(0, 1)], abs=1e-4)
    turn(page, "Ablation")
    page.get_by_role("group", name="Switch heads off").get_by_role("button").first.click()
    told(page, re.compile("^Switched off: 1. Layer 1"))
    expect(view(page).locator("picture-map")).to_have_count(3)


def test_files_have_the_picture_in_them(pictures: Visitor, weights: NDArray[np.float32]) -> None:
    page = opened(pictures, **HEAD | {"from": looking.token(1, 2), "smooth": 1})
    told(page, "Layer 0 head 1 shown.")
    files = Files(page)
    svg = ET.fromstring(files.save("SVG"))
    links = [image.get("href", "") for image in svg.iter("{http://www.w3.org/2000/svg}image")]
    images = [Image.open(io.BytesIO(base64.b64decode(x.split(",")[1]))) for x in links]
    assert images[0].size == looking.SIZE
    assert images[0].convert("RGB").getpixel((300, 200)) == (128, 128, 128)
    assert any("grey.jpg" in (text.text or "") for text in svg.iter())
    png = Image.open(io.BytesIO(files.save("PNG")))
    assert png.width > 2 * 600
    content = json.loads(files.save("JSON"))
    assert (content["grid"], content["size"]) == ([4, 6], [700, 420])
    assert content["crop"] == pytest.approx(looking.CROP, abs=1e-3)
    row = weights[0, 1, looking.token(1, 2)]
    np.testing.assert_allclose(np.array(content["patches"]).ravel(), row[1:], atol=1e-5)
    assert content["special"]["[CLS]"] == pytest.approx(row[0], abs=1e-5)


def test_pictures_are_pasted_dropped_and_refused_in_place(pictures: Visitor) -> None:
    page = pictures.open(pictures.state(**HEAD))
    give = """([kind, name, data]) => {
      const files = new DataTransfer();
      const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
      files.items.add(new File([bytes], name, {type: 'image/jpeg'}));
      const how = {clipboardData: files, dataTransfer: files, bubbles: true, cancelable: true};
      const Kind = kind === 'paste' ? ClipboardEvent : DragEvent;
      document.body.dispatchEvent(new Kind(kind, how));
    }"""
    page.locator("#picture").wait_for(state="attached")
    data = base64.b64encode(FILE["buffer"]).decode()
    page.evaluate(give, ["drop", "broken.jpg", data[:400]])
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("broken.jpg is not a picture that this browser can show")
    page.evaluate(give, ["paste", "pasted.jpg", data])
    told(page, "Layer 0 head 1 shown.")
    expect(page.get_by_text("pasted.jpg")).to_be_visible()
    expect(alert).to_have_count(0)
    page.get_by_role("button", name="Example").click()
    expect(page.get_by_text("448 × 448 pixels")).to_be_visible()


def test_two_pictures_are_explained(pictures: Visitor) -> None:
    pictures.expected = ("status of 422",)  # this model's vectors have no shares of pairs
    page = opened(pictures, view="why", why="decomposition")
    page.locator("#picture-b").set_input_files(FILE)
    told(page, "Similarity 1.000 explained.")
    expect(view(page).locator("picture-map")).to_have_count(2)
    choose(page, 1, 2)
    expect(view(page).get_by_text("Picture 2, with row 1, column 2")).to_be_visible()


def losses(folder: Path, file: bytes, text: str, words: list[str]) -> tuple[Any, Any]:
    """Return what the cosine loses without each patch `[2, 2]`, and without each word."""
    model = CLIPModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64)
    processor = CLIPImageProcessorPil.from_pretrained(folder)
    values = processor(Image.open(io.BytesIO(file)), return_tensors="pt")["pixel_values"].double()
    ids = CLIPTokenizer.from_pretrained(folder)(text, return_tensors="pt")["input_ids"]
    seen, read = Side(model, {"pixel_values": values}), Side(model, {"input_ids": ids})

    def cosine(patches: list[int], letters: list[int]) -> float:
        with torch.no_grad():
            vectors = seen.vector(without=patches), read.vector(without=letters)
        return float(torch.cosine_similarity(*vectors, dim=0))

    whole, start, of_words = cosine([], []), 1, []
    for word in words:
        of_words.append(whole - cosine([], [*range(start, start + len(word))]))
        start += len(word)
    return np.array(
        [[whole - cosine([1 + 2 * r + c], []) for c in (0, 1)] for r in (0, 1)]
    ), of_words


def test_a_picture_and_a_text_are_explained(pictures: Visitor, clip_checkpoint: Path) -> None:
    """Losses without words and patches are transformers'; the other tower has the page of texts."""
    pictures.expected = ("status of 422",)
    file = saved(Image.fromarray(pixels(60, 60)), "PNG")
    words = ["red", "cat"]
    given = {"name": "noise.png", "mimeType": "image/png", "buffer": file}
    page = opened(pictures, query="?model=clip", file=given, view="why", c="red cat")
    told(page, "explained.")
    patches, of_words = losses(clip_checkpoint, file, "red cat", words)
    marks = page.get_by_role("group", name="Text, word by word").get_by_role("button").all()
    told_of = [float((one.get_attribute("data-says") or "").rpartition(", ")[2]) for one in marks]
    np.testing.assert_allclose(told_of, of_words, atol=6e-5)
    canvas = view(page).get_by_role("img").first
    canvas.scroll_into_view_if_needed()
    width = canvas.evaluate("(it) => it.clientWidth")
    for row, column in ((0, 0), (0, 1), (1, 0)):
        place = {"x": (column + 0.5) * width / 2, "y": (row + 0.5) * width / 2}
        canvas.hover(position=place)
        expect(view(page).locator("picture-map .readout")).to_have_text(
            f"Row {row}, column {column}: {patches[row, column]:.4f}"
        )
    page.get_by_role("button", name="Texts").click()
    expect(page.get_by_label("Text", exact=True)).to_be_visible()
    assert "input=texts" in page.url


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        ("inputs[0]: the picture has more than 9 pixels", "the picture has more than 9 pixels"),
        ("inputs[0] has more than 9 bytes", "the picture has more than 9 bytes"),
        ("inputs[0][1] has 99 tokens", "the second picture has 99 tokens"),
    ],
)
def test_errors_name_the_picture(call: Any, detail: str, said: str) -> None:
    assert call("pictures/problems", "inWords", detail, "the second picture") == said


@pytest.mark.parametrize(("rows", "columns", "factor"), [(4, 6, 5), (1, 3, 4)])
def test_smooth_maps_are_interpolated_as_torch_does(
    call: Any, rows: int, columns: int, factor: int
) -> None:
    values = np.random.default_rng(0).random((rows, columns), np.float32)
    given = {"f32": values.ravel().tolist()}
    found = call("pictures/geometry", "interpolated", given, rows, columns, factor)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(values)[None, None], scale_factor=factor, mode="bilinear"
    )
    np.testing.assert_allclose(found, expected.numpy().ravel(), atol=1e-6)


def test_axe_finds_nothing(pictures: Visitor) -> None:
    """Of pictures in any view, at two widths, light, dark and forced, after a tap on a patch."""
    pictures.expected = ("status of 422",)  # this model's vectors have no shares of pairs
    page = opened(pictures, touch=True, **HEAD | {"to": 4})
    canvas = view(page).get_by_role("img").first
    x, y = patch_at(canvas, 2.5, 1.5)
    canvas.tap(position={"x": x, "y": y})
    told(page, "Layer 0 head 1 shown. From row 2, column 1 to row 0, column 3.")
    found = set()
    for tab in ("One head", "All heads", "Rollout", "Ablation", "Why alike?"):
        turn(page, tab, "tap")
        if tab != "Why alike?":
            told(page, SHOWN)
        found |= everywhere(page, (390, 1100))
    assert not found, sorted(found)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 1100
