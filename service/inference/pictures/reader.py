"""Pictures as the patches that an encoder sees. Stateless, and safe to use from several threads.

Notation: S tokens of a picture, F features of a patch.
"""

from __future__ import annotations

import math

import numpy as np

from model.artifact.manifest import Manifest
from model.errors import ImageError
from model.images.opening import DECODING_BYTES, ImageLimits, open_image, read_size
from model.images.patches import patch_rows
from model.images.pixels import prepare, resizing_bytes
from model.images.steps import STEP_BYTES, count_steps
from service.errors import Unprocessable
from service.inference.tokenization.inputs import Picture
from service.inference.tokenization.tokenized import (
    TEXT_BYTES,
    TOKEN_BYTES,
    PictureView,
    TokenizedText,
)

FILE_COPIES = 4
"""Maximum copies of a file in memory while it is opened, beside its steps."""


class PictureReader:
    """Preprocessing of a model's pictures."""

    def __init__(self, manifest: Manifest, max_pixels: int) -> None:
        """Initialise from a manifest with `images` and patches.

        Args:
            manifest: manifest of the model.
            max_pixels: maximum width × height of a picture.

        """
        assert manifest.images is not None  # noqa: S101 - checked by the caller
        assert manifest.config.embeddings.patches is not None  # noqa: S101
        self.processing = manifest.images
        self._patches = patches = manifest.config.embeddings.patches
        self._max_pixels = max_pixels
        special, count = len(patches.special_tokens), patches.rows * patches.columns
        places = np.ndindex(patches.rows, patches.columns)
        self._tokens = [*patches.special_tokens, *(f"{row},{column}" for row, column in places)]
        self._ids = np.array(patches.token_ids, np.int64)
        self._special = [1] * special + [0] * count
        size = 4 * patches.tokens * patches.features
        self.nbytes = TEXT_BYTES + TOKEN_BYTES * patches.tokens + size
        """Bytes of a picture's tokens and pixels."""

    @property
    def tokens(self) -> int:
        """Number of a picture's tokens."""
        return self._patches.tokens

    def size_of(self, picture: Picture, name: str) -> tuple[int, int]:
        """Return width and height of a picture, from the head of its file.

        Args:
            picture: the picture.
            name: name of the picture in error messages.

        Raises:
            Unprocessable: the file is not accepted, or has too many pixels.

        """
        try:
            return read_size(picture.data, self._limits(picture))
        except ImageError as error:
            raise Unprocessable(f"{name}: {error}") from None

    def working_bytes(self, picture: Picture, size: tuple[int, int], name: str) -> int:
        """Return the maximum bytes of memory that reading a picture takes.

        Args:
            picture: the picture, whose head was read.
            size: width and height of the picture.
            name: name of the picture in error messages.

        Raises:
            Unprocessable: one side is too long for the other.

        """
        try:
            opening = FILE_COPIES * len(picture.data) + STEP_BYTES * count_steps(picture.data)
            resizing = resizing_bytes(size, self.processing)
        except ImageError as error:
            raise Unprocessable(f"{name}: {error}") from None
        return opening + DECODING_BYTES * math.prod(size) + resizing

    def read(self, picture: Picture, name: str) -> TokenizedText:
        """Return the tokens of a picture, with `[S, F]` pixels.

        Args:
            picture: the picture.
            name: name of the picture in error messages.

        Raises:
            Unprocessable: the file is not accepted, or is damaged.

        """
        patches = self._patches
        try:
            prepared = prepare(open_image(picture.data, self._limits(picture)), self.processing)
        except ImageError as error:
            raise Unprocessable(f"{name}: {error}") from None
        pixels = np.zeros((patches.tokens, patches.features), np.float32)
        pixels[len(patches.special_tokens) :] = patch_rows(prepared.values, patches.size)
        return TokenizedText(
            tokens=self._tokens,
            input_ids=self._ids,
            segment_ids=np.zeros_like(self._ids),
            places=np.zeros((patches.tokens, 2), np.int32),
            truncated=False,
            prompt_tokens=0,
            special_tokens_mask=self._special,
            unknown=np.zeros(patches.tokens, np.bool_),
            pixels=pixels,
            picture=PictureView((patches.rows, patches.columns), prepared.size, prepared.crop),
        )

    def _limits(self, picture: Picture) -> ImageLimits:
        return ImageLimits(self._max_pixels, picture.first_frame)
