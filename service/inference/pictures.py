"""Pictures as the patches that an encoder sees. Stateless, and safe to use from several threads.

The heads of all files are read first, in a thread of their own: they hold the number of pixels, on
which memory and time depend. Only then is a picture decoded.

Notation: S tokens of a picture, F features of a patch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from model.artifact.manifest import Manifest
from model.errors import ImageError
from model.images.opening import DECODING_BYTES, ImageLimits, open_image, read_size
from model.images.pixels import prepare, resizing_bytes, sample_file
from model.images.processing import patch_rows
from model.images.steps import STEP_BYTES, count_steps
from service.errors import Unprocessable
from service.inference.tokenization.backlog import WEIGHT, Backlog
from service.inference.tokenization.inputs import Input, Picture
from service.inference.tokenization.text import TEXT_BYTES, ArrayText, PictureView, Text
from service.inference.tokenization.tokenizer import Limits, Options
from service.scheduler.call import Call, Demand

FILE_COPIES = 4
"""Maximum copies of a file in memory while it is opened, beside its steps."""


class PictureHead(NamedTuple):
    """Cost of reading a picture, by the head of its file."""

    pixels: int
    steps: int
    """Number of steps in which the file is opened."""
    working_bytes: int
    """Maximum bytes of memory that reading the picture takes."""


class PictureReader:
    """Preprocessing of a model's pictures."""

    def __init__(self, manifest: Manifest, max_pixels: int) -> None:
        """Initialise from a manifest with `images` and patches."""
        assert manifest.images is not None  # noqa: S101 - checked by the caller
        assert manifest.config.embeddings.patches is not None  # noqa: S101
        self.processing = manifest.images
        self._patches = patches = manifest.config.embeddings.patches
        self._max_pixels = max_pixels
        places = np.ndindex(patches.rows, patches.columns)
        self._tokens = [*patches.special_tokens, *(f"{row},{column}" for row, column in places)]
        self._special = [1] * len(patches.special_tokens) + [0] * patches.rows * patches.columns
        size = 4 * patches.tokens * patches.features
        self.nbytes = TEXT_BYTES + ArrayText.token_bytes * patches.tokens + size
        """Bytes of a picture's tokens and pixels."""

    def head(self, picture: Picture, name: str) -> PictureHead:
        """Return the cost of reading a picture, which is named in error messages.

        Raise Unprocessable for a file that is not accepted, or whose size is not.
        """
        with _refusal(name):
            size, steps = read_size(picture.data, self._limits(picture)), count_steps(picture.data)
            working = FILE_COPIES * len(picture.data) + STEP_BYTES * steps
            working += DECODING_BYTES * math.prod(size) + resizing_bytes(size, self.processing)
        return PictureHead(math.prod(size), steps, working)

    def read(self, picture: Picture, name: str) -> Text:
        """Return the tokens of a picture, which is named in error messages, with `[S, F]` pixels.

        Raise Unprocessable for a file that is not accepted, or is damaged.
        """
        patches, ids = self._patches, np.array(self._patches.token_ids, np.int64)
        with _refusal(name):
            prepared = prepare(open_image(picture.data, self._limits(picture)), self.processing)
        pixels = np.zeros((patches.tokens, patches.features), np.float32)
        pixels[len(patches.special_tokens) :] = patch_rows(prepared.values, patches.size)
        return ArrayText(
            tokens=self._tokens,
            input_ids=ids,
            segment_ids=np.zeros_like(ids),
            places=np.zeros((patches.tokens, 2), np.int32),
            special_tokens_mask=self._special,
            pixels=pixels,
            picture=PictureView((patches.rows, patches.columns), prepared.size, prepared.crop),
        )

    def _limits(self, picture: Picture) -> ImageLimits:
        return ImageLimits(self._max_pixels, picture.first_frame)


@contextmanager
def _refusal(name: str) -> Iterator[None]:
    """Raise Unprocessable, with the name of a picture, in place of ImageError."""
    try:
        yield
    except ImageError as error:
        raise Unprocessable(f"{name}: {error}") from None


HEAD_BYTES = 2**16
"""Number of bytes that are searched in the time in which a head is read."""
TARGET_WEIGHT = 2
"""Time of a pixel of the encoder's picture, which is normalised, in pixels of a file that are
decoded and resized. For 224 × 224 it was 1.3 ms, where a pixel of a JPEG file takes 14 ns."""
STEP_PIXELS, BYTES_A_PIXEL = 400, 8
"""Time of a step in which a file is opened, in pixels that are decoded; and number of a file's
bytes that are searched and copied in the time of a pixel."""
SAMPLE_EDGE = 512
"""Maximum width and height of the picture that is measured before any request."""


class RequestPictures:
    """Preprocessing of a model's pictures, as requests use it in place of a `RequestTokenizer`."""

    separator_ids: frozenset[int] = frozenset()
    target_separator_ids: frozenset[int] = frozenset()
    expects_prompt = False

    def __init__(self, manifest: Manifest, limits: Limits, max_pixels: int) -> None:
        """Initialise without starting a thread; see `PictureReader`."""
        self._reader, self.limits = PictureReader(manifest, max_pixels), limits
        names = {"pool": "pictures", "owner": "the preprocessing of pictures"}
        self._heads = Backlog(1, **names, slice_size=HEAD_BYTES, large_size=2**40, pace=2e-9)
        """Reading of heads, whose size is the bytes with `HEAD_BYTES`. Each is a slice, as it may
        take 50 ms in place of the usual 0.1 ms."""
        self._backlog = Backlog(None, **names, slice_size=2**20, large_size=2**22, pace=2e-8)
        """Decoding and preprocessing, whose size is the pixels with `TARGET_WEIGHT`; a slice takes
        some 20 ms."""
        self._target = TARGET_WEIGHT * math.prod(self._reader.processing.size)
        self._most_pixels = max_pixels
        self._pixels_per_byte = 4.0

    def measure(self) -> None:
        """Measure the time of a JPEG file within the limits, before any request."""
        edge = min(SAMPLE_EDGE, math.isqrt(self._most_pixels))
        picture, name = Picture(sample_file(edge)), "the measured picture"
        self._reader.read(picture, name)  # the first call is slower
        began = time.monotonic()
        pixels = self._reader.head(picture, name).pixels
        between = time.monotonic()
        self._reader.read(picture, name)
        self._heads.pace = (between - began) / (HEAD_BYTES + len(picture.data))
        self._backlog.pace = (time.monotonic() - between) / (pixels + self._target)

    def demand(
        self, inputs: Sequence[Input], options: Options, caller: Call, beside: int = 0
    ) -> Demand:
        """Return the predicted demand of a request before its pictures are opened."""
        del beside
        pictures = self._checked(inputs, options)
        bytes_read = sum(len(picture.data) for picture in pictures)
        pixels = min(self._pixels_per_byte * bytes_read, self._most_pixels * len(pictures))
        size = round(pixels) + self._target * len(pictures) + bytes_read // BYTES_A_PIXEL
        seconds = self._backlog.seconds(caller.client, size)
        seconds += self._heads.seconds(caller.client, HEAD_BYTES * len(pictures) + bytes_read)
        return Demand(len(pictures), self.limits.max_tokens * len(pictures), seconds)

    async def tokenize(
        self, inputs: Sequence[Input], options: Options, caller: Call, beside: int = 0
    ) -> list[Text]:
        """Return the tokens and pixels of each picture.

        Cancelling the call ends it after the running slices.
        """
        del beside
        pictures, reservation = self._checked(inputs, options), caller.reservation

        def heads(part: Sequence[Picture], first: int) -> list[PictureHead]:
            return [self._reader.head(p, options.name(n)) for n, p in enumerate(part, first)]

        def tokens(part: Sequence[Picture], first: int) -> list[Text]:
            return [self._reader.read(p, options.name(n)) for n, p in enumerate(part, first)]

        bytes_read = [HEAD_BYTES + len(picture.data) for picture in pictures]
        read = await self._heads.run(caller, pictures, bytes_read, heads)
        if reservation:
            reservation.grow(self._reader.nbytes * len(pictures))
        sizes = []
        for picture, head in zip(pictures, read, strict=True):
            rate = head.pixels / len(picture.data)
            self._pixels_per_byte += WEIGHT * (rate - self._pixels_per_byte)
            opened = STEP_PIXELS * head.steps + len(picture.data) // BYTES_A_PIXEL
            sizes.append(opened + head.pixels + self._target)
        memory = [head.working_bytes for head in read]
        return await self._backlog.run(caller, pictures, sizes, tokens, memory)

    def most_tokens(self, inputs: Sequence[Input], options: Options) -> int:  # noqa: ARG002
        """Return the number of a picture's tokens."""
        return self.limits.max_tokens

    def close(self) -> None:
        """Fail all waiting requests, and wait for the running slices."""
        self._heads.close()
        self._backlog.close()

    def _checked(self, inputs: Sequence[Input], options: Options) -> list[Picture]:
        """Return the pictures of a request, unless an input or an option is for texts only."""
        if len(inputs) > self.limits.max_inputs:
            raise self.limits.too_many(len(inputs))
        pictures = [given for given in inputs if isinstance(given, Picture)]
        if len(pictures) < len(inputs):
            index = next(n for n, given in enumerate(inputs) if not isinstance(given, Picture))
            raise Unprocessable(
                f"{options.name(index)} is a text, and the model reads pictures: send "
                '{"image": …}, or choose a model of texts'
            )
        given_names = {"prompt_name": options.prompt_name, "task": options.task}
        if refused := [name for name, value in given_names.items() if value is not None]:
            raise Unprocessable(f"{refused[0]} is for texts: leave it out for pictures")
        if options.windows:
            raise Unprocessable("overflow and chunk are for texts: leave them out for pictures")
        return pictures
