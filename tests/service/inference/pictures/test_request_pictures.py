"""Pictures of requests within their limits, memory and time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from model.images.steps import STEP_BYTES
from service.errors import DeadlinePassed, Overloaded, RequestTooLarge, Unprocessable
from service.inference.pictures.reader import PictureReader
from service.inference.pictures.request_pictures import RequestPictures
from service.inference.tokenization.inputs import Picture
from service.inference.tokenization.tokenizer import Options
from service.scheduler.submission import ANYBODY, Caller
from service.system.budget import ByteBudget, Reservation
from tests.service.harness import until
from tests.service.pictures import picture, pictures_of

pytestmark = pytest.mark.anyio
PLAIN = Options()


@pytest.fixture
def pictures(artifact: Artifact) -> Iterator[RequestPictures]:
    own = RequestPictures(pictures_of(artifact).manifest, 10**6, 10**6, max_inputs=8)
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
    small = RequestPictures(pictures_of(artifact).manifest, 10**6, 99, max_inputs=1)
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
    caller = Caller("a", time.monotonic() + 60, reservation=reservation)
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
    late = Caller("a", time.monotonic() - 1)
    with pytest.raises(DeadlinePassed, match="0 of 1 inputs were prepared"):
        await pictures.tokenize([Picture(picture())], PLAIN, late)
    pictures._backlog.expect("pictures", 1, 60.0)
    with pytest.raises(Overloaded, match="to prepare the pictures it would take about"):
        await pictures.tokenize([Picture(picture())], PLAIN, Caller("a", time.monotonic() + 30))


async def test_a_single_picture_goes_before_the_rest_of_a_long_list(
    pictures: RequestPictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one client the shorter request ends first, and of two the one that has had less."""
    gate, begun = threading.Semaphore(0), []
    read = PictureReader.read

    def wait(self: PictureReader, given: Picture, name: str) -> Any:
        begun.append(name)
        assert gate.acquire(timeout=60)
        return read(self, given, name)

    monkeypatch.setattr(PictureReader, "read", wait)
    monkeypatch.setattr(pictures._backlog, "threads", 1)
    monkeypatch.setattr(pictures._backlog, "_idle", 1)
    large = [Picture(picture(width=900, height=700))] * 3  # a slice each
    first = asyncio.create_task(pictures.tokenize(large, Options(naming="long {}"), ANYBODY))
    await until(lambda: len(begun) == 1)
    second = pictures.tokenize([Picture(picture())], Options(naming="short {}"), ANYBODY)
    task = asyncio.create_task(second)
    await until(lambda: pictures._backlog._waiting == 2)
    gate.release()
    await until(lambda: len(begun) == 2)
    gate.release(9)
    await asyncio.gather(first, task)
    assert begun == ["long 0", "short 0", "long 1", "long 2"]


async def test_a_head_waits_for_one_head_of_another_client(
    pictures: RequestPictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forecast does not know the parts of a file, so each head is a slice of its own."""
    gate, begun = threading.Semaphore(0), []
    size_of = PictureReader.size_of

    def wait(self: PictureReader, given: Picture, name: str) -> Any:
        begun.append(name)
        assert gate.acquire(timeout=60)
        return size_of(self, given, name)

    monkeypatch.setattr(PictureReader, "size_of", wait)
    long, short = (Options(naming=f"{name} {{}}") for name in ("long", "short"))
    other = Caller("b", time.monotonic() + 60)
    first = asyncio.create_task(pictures.tokenize([Picture(picture())] * 3, long, other))
    await until(lambda: len(begun) == 1)
    task = asyncio.create_task(pictures.tokenize([Picture(picture())], short, ANYBODY))
    await until(lambda: pictures._heads._waiting == 2)
    gate.release(9)
    await asyncio.gather(first, task)
    assert begun == ["long 0", "short 0", "long 1", "long 2"]


async def test_work_grows_with_the_steps_and_bytes_of_a_file(
    pictures: RequestPictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    works: list[list[int]] = []
    run = pictures._backlog.run

    async def note(work: Any) -> Any:
        works.append([*work.sizes])
        return await run(work)

    monkeypatch.setattr(pictures._backlog, "run", note)
    plain = picture(width=1, height=1, kind="GIF")
    await pictures.tokenize([Picture(plain), Picture(plain + bytes(8000))], PLAIN, ANYBODY)
    junk = Picture(plain[:-1] + bytes(4000) + b";")
    await pictures.tokenize([junk], PLAIN, ANYBODY)
    ((own, padded), (many,)) = works
    assert padded - own == 1000
    assert many - own == 500 + 400 * 1000
