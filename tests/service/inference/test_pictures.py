"""Pictures as patches and enlarged maps, against transformers and torch; their limits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTImageProcessorPil

from model.artifact.manifest import Artifact
from model.images.steps import STEP_BYTES
from service.errors import DeadlinePassed, Overloaded, RequestTooLarge, Unprocessable
from service.inference.attention.map_parts import MapPart, Resampling, enlarged
from service.inference.pictures import PictureReader, RequestPictures
from service.inference.tokenization.inputs import Picture
from service.inference.tokenization.text import PictureView
from service.inference.tokenization.tokenizer import Limits, Options
from service.scheduler.call import ANYBODY, Call
from service.system.budget import ByteBudget, Reservation
from tests.service.harness import until
from tests.service.pictures import picture, pictures_of

pytestmark = pytest.mark.anyio


GRID, SIZE = (3, 5), (41, 20)
MAPS = np.random.default_rng(0).random((2, 4, 1 + 15), np.float32)
PATCHES = MAPS[..., 1:].reshape(2, 4, *GRID)


def torchs(patches: Any, height: int, width: int, mode: Resampling) -> Any:
    corners = {} if mode == "nearest" else {"align_corners": False}
    resized = torch.nn.functional.interpolate(
        torch.from_numpy(patches),
        (height, width),
        mode="nearest-exact" if mode == "nearest" else mode,
        **corners,
    )
    return resized.numpy()


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_the_whole_picture_is_as_torch_and_pillow_resize_it(mode: Resampling) -> None:
    width, height = SIZE
    found = enlarged(MAPS, PictureView(GRID, SIZE, (0, 0, width, height)), mode)
    assert found.dtype == np.float32
    assert found.shape[2:] == (height, width)
    np.testing.assert_allclose(found, torchs(PATCHES, height, width, mode), atol=1e-6)
    resample = Image.Resampling[mode.upper()]
    pillows = Image.fromarray(PATCHES[1, 2]).resize(SIZE, resample)
    np.testing.assert_allclose(found[1, 2], np.array(pillows), atol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_a_crop_has_zeros_around_it(mode: Resampling) -> None:
    view = PictureView(GRID, SIZE, (6, 2, 36, 17))
    wanted = np.zeros((2, 4, 20, 41), np.float32)
    wanted[..., 2:17, 6:36] = torchs(PATCHES, 15, 30, mode)
    np.testing.assert_allclose(enlarged(MAPS, view, mode), wanted, atol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_a_crop_may_exceed_the_picture(mode: Resampling) -> None:
    """A picture that is smaller than the crop is padded, so that its pixels are a part of it."""
    view = PictureView(GRID, (4, 3), (-3, -2, 12, 7))
    wanted = torchs(PATCHES, 9, 15, mode)[..., 2:5, 3:7]
    np.testing.assert_allclose(enlarged(MAPS, view, mode), wanted, atol=1e-6)


def test_a_crop_between_pixels_holds_the_pixels_with_their_centre_in_it() -> None:
    view, maps = PictureView((1, 2), (6, 2), (0.75, 0, 4.5, 1.4)), np.array([[0.25, 0.75]])
    found = enlarged(maps.astype(np.float32), view, "nearest")
    assert found[0].tolist() == [[0, 0.25, 0.25, 0.75, 0, 0], [0, 0, 0, 0, 0, 0]]


def test_a_part_of_a_map_is_enlarged_row_by_row() -> None:
    view = PictureView(GRID, SIZE, (0, 0, *SIZE))
    maps = np.random.default_rng(1).random((2, 16, 16), np.float32)
    part = MapPart((0, -1), enlarge="bilinear")
    found = part.of(maps, view)
    np.testing.assert_array_equal(found, enlarged(maps[:, [0, 15]], view, "bilinear"))
    assert part.shape(16, 16, view) == found.shape[1:]


@pytest.fixture
def reader(artifact: Artifact) -> PictureReader:
    return PictureReader(pictures_of(artifact).manifest, max_pixels=1000)


def test_patches_are_those_that_a_convolution_sees(reader: PictureReader) -> None:
    data = picture(1)
    text = reader.read(Picture(data), "inputs[0]")
    processor = ViTImageProcessorPil(
        size={"height": 8, "width": 12}, image_mean=[0.5] * 3, image_std=[0.25] * 3
    )
    values = processor(Image.open(BytesIO(data)), return_tensors="pt")["pixel_values"]
    weight = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    seen = torch.nn.functional.conv2d(values, weight, stride=4)[0].flatten(1).T
    assert text.pixels is not None
    assert not text.pixels[0].any()
    computed = text.pixels[1:] @ weight.flatten(1).T.numpy()
    np.testing.assert_allclose(computed, seen.numpy(), atol=1e-5)


def test_tokens_are_named_by_row_and_column(reader: PictureReader) -> None:
    text = reader.read(Picture(picture()), "inputs[0]")
    assert text.tokens == ["[CLS]", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2"]
    assert text.input_ids.tolist() == [1, 0, 0, 0, 0, 0, 0]
    assert [*text.special_tokens_mask] == [1, 0, 0, 0, 0, 0, 0]
    assert not text.mostly_unknown
    assert not any(array.any() for array in (text.segment_ids, text.places))
    assert text.picture is not None
    assert (text.picture.grid, text.picture.size) == ((2, 3), (30, 20))
    assert text.picture.crop == (0, 0, 30, 20)
    assert text.nbytes == reader.nbytes == 1024 + 7 * 40 + 4 * 7 * 48


def test_a_file_that_is_refused_is_named(reader: PictureReader) -> None:
    whole = picture()
    assert reader.head(Picture(whole), "").pixels == 30 * 20
    with pytest.raises(Unprocessable, match=r"inputs\[3\]: the PNG file is truncated or damaged"):
        reader.read(Picture(whole[:900]), "inputs[3]")
    with pytest.raises(Unprocessable, match=r"inputs\[3\]: the picture has more than 1000 pixels"):
        reader.head(Picture(picture(width=51)), "inputs[3]")


PLAIN = Options()


@pytest.fixture
def pictures(artifact: Artifact) -> Iterator[RequestPictures]:
    own = RequestPictures(pictures_of(artifact).manifest, Limits(7, 10**6, 8), 10**6)
    yield own
    own.close()


async def test_pictures_are_prepared_in_threads_and_in_order(
    pictures: RequestPictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()
    read = PictureReader.read

    def note(self: PictureReader, *arguments: Any) -> Any:
        threads.add(threading.get_ident())
        return read(self, *arguments)

    monkeypatch.setattr(PictureReader, "read", note)
    inputs = [Picture(picture(seed, width=20 + seed)) for seed in range(3)]
    texts = await pictures.tokenize(inputs, PLAIN, ANYBODY)
    assert [text.picture.size for text in texts if text.picture] == [(20, 20), (21, 20), (22, 20)]
    assert threading.get_ident() not in threads


async def test_demand_counts_every_token(pictures: RequestPictures) -> None:
    pictures.measure()
    demand = pictures.demand([Picture(picture())] * 3, PLAIN, ANYBODY)
    assert (demand.texts, demand.tokens) == (3, 21)
    assert demand.tokenizing_seconds is not None
    assert 0 < demand.tokenizing_seconds < 1


async def test_the_measured_picture_is_within_the_limit(artifact: Artifact) -> None:
    small = RequestPictures(pictures_of(artifact).manifest, Limits(7, 10**6), 99)
    small.measure()
    small.close()


@pytest.mark.parametrize(
    ("inputs", "options", "why"),
    [
        ([Picture(b"a"), "a text"], PLAIN, r"inputs\[1\] is a text, and the model reads pictures"),
        ([Picture(b"a")] * 9, PLAIN, "9 inputs in one request; at most 8"),
        ([Picture(b"a")], Options(prompt_name="query"), "prompt_name is for texts"),
        ([Picture(b"a")], Options(windows=True), "overflow and chunk are for texts"),
        ([Picture(b"no file")], Options(places=(5,)), r"inputs\[5\]: the file is not a PNG"),
    ],
)
async def test_what_is_no_picture_is_refused(
    pictures: RequestPictures, inputs: Any, options: Options, why: str
) -> None:
    with pytest.raises(Unprocessable, match=why):
        await pictures.tokenize(inputs, options, ANYBODY)


async def test_memory_is_reserved_by_the_pixels_before_a_picture_is_decoded(
    pictures: RequestPictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 pixels take 16 bytes while decoded, 240 between the axes and 2 · 96 after them 4 bytes.

    Each of the 96 has 16 bytes of values, and the file 4 bytes for each of its own beside 2 steps.
    Tokens and patches stay.
    """
    kept = 1024 + 7 * 40 + 4 * 7 * 48
    opening = 4 * len(picture()) + 2 * STEP_BYTES
    working = opening + 16 * 600 + 4 * (240 + 2 * 96) + 16 * 96
    reservation = Reservation(ByteBudget(2 * working + 2 * kept))
    caller = Call("a", time.monotonic() + 60, reservation=reservation)
    await pictures.tokenize([Picture(picture())] * 2, PLAIN, caller)
    assert reservation.size == 2 * kept
    reservation.release()
    monkeypatch.setattr(PictureReader, "read", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(RequestTooLarge):
        await pictures.tokenize([Picture(picture(width=60))] * 2, PLAIN, caller)


async def test_sides_are_checked_before_a_picture_is_decoded(
    pictures: RequestPictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.images.pixels.MOST_SIDE", 11)
    monkeypatch.setattr(PictureReader, "read", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(Unprocessable, match=r"inputs\[0\]: one side of the picture is too many"):
        await pictures.tokenize([Picture(picture())], PLAIN, ANYBODY)


async def test_what_cannot_be_prepared_in_time_is_refused(pictures: RequestPictures) -> None:
    late = Call("a", time.monotonic() - 1)
    with pytest.raises(DeadlinePassed, match="before all inputs were read"):
        await pictures.tokenize([Picture(picture())], PLAIN, late)
    pictures._backlog.pace = 60.0
    with pytest.raises(Overloaded, match="the preprocessing of pictures would take about"):
        await pictures.tokenize([Picture(picture())], PLAIN, Call("a", time.monotonic() + 30))


@pytest.mark.parametrize(
    ("step", "size", "client"), [("read", (900, 700), ANYBODY), ("head", (30, 20), Call("b"))]
)
async def test_a_single_picture_goes_before_the_rest_of_a_long_list(
    pictures: RequestPictures,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    size: tuple[int, int],
    client: Call,
) -> None:
    """Of one client the shorter request ends first, and of two the one that has had less.

    The forecast does not know the parts of a file, so each head is a slice of its own.
    """
    gate, begun = threading.Semaphore(0), []
    whole = getattr(PictureReader, step)
    backlog = pictures._backlog if step == "read" else pictures._heads

    def wait(self: PictureReader, given: Picture, name: str) -> Any:
        begun.append(name)
        assert gate.acquire(timeout=60)
        return whole(self, given, name)

    monkeypatch.setattr(PictureReader, step, wait)
    monkeypatch.setattr(backlog, "threads", 1)
    monkeypatch.setattr(backlog, "_idle", 1)
    large = [Picture(picture(width=size[0], height=size[1]))] * 3  # a slice each
    first = asyncio.create_task(pictures.tokenize(large, Options(naming="long {}"), client))
    await until(lambda: len(begun) == 1)
    second = pictures.tokenize([Picture(picture())], Options(naming="short {}"), ANYBODY)
    task = asyncio.create_task(second)
    await until(lambda: len(backlog._order) == 2)
    gate.release()
    await until(lambda: len(begun) == 2)
    gate.release(9)
    await asyncio.gather(first, task)
    assert begun == ["long 0", "short 0", "long 1", "long 2"]


async def test_work_grows_with_the_steps_and_bytes_of_a_file(
    pictures: RequestPictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    works: list[list[int]] = []
    run = pictures._backlog.run

    async def note(caller: Call, inputs: Any, sizes: list[int], *more: Any) -> Any:
        works.append(sizes)
        return await run(caller, inputs, sizes, *more)

    monkeypatch.setattr(pictures._backlog, "run", note)
    plain = picture(width=1, height=1, kind="GIF")
    await pictures.tokenize([Picture(plain), Picture(plain + bytes(8000))], PLAIN, ANYBODY)
    junk = Picture(plain[:-1] + bytes(4000) + b";")
    await pictures.tokenize([junk], PLAIN, ANYBODY)
    ((own, padded), (many,)) = works
    assert padded - own == 1000
    assert many - own == 500 + 400 * 1000
