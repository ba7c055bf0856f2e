"""Readers of a run in this process: texts by the tokenizer, and pictures from their files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from model.artifact.manifest import TOKENIZER, Artifact
from service.errors import InputTooLong, Unprocessable
from service.files.chunks import ChunksPlan
from service.files.encoder import PICTURE, Refused
from service.files.options import Encoding, UsageError
from service.files.pictures import read_picture
from service.files.text_arrays import Plan, PooledPlan
from service.inference.tokenization.inputs import Picture
from service.inference.tokenization.tokenized import TokenizedText
from service.inference.tokenization.tokenizer import Options, TextTokenizer
from service.models.limits import token_limits
from service.settings import Settings
from service.system.distribution import require

if TYPE_CHECKING:
    from service.inference.pictures.reader import PictureReader

SLICE_TEXTS = 64
"""Number of texts tokenised together; if one is rejected, they are tokenised one by one."""
MOST_THREADS = 4
"""Maximum number of pictures that are decoded at once."""


class Reader(Protocol):
    """Reader of the texts or pictures of a window."""

    @property
    def separator_ids(self) -> frozenset[int]:
        """Ids of tokens that end a text."""

    def read(self, given: Sequence[str]) -> list[TokenizedText | Refused]:
        """Return the tokens of each text, or of the picture at each path."""

    def lacking(self, count: int) -> int:
        """Return the number of texts, among `count`, that lack a prompt of the model."""

    def close(self) -> None:
        """Release resources."""


class TextReader:
    """Reader of texts."""

    def __init__(self, tokenizer: TextTokenizer, encoding: Encoding) -> None:
        """Initialise."""
        self._tokenizer, self._options = tokenizer, _options(tokenizer, encoding)
        self.separator_ids = frozenset(tokenizer.separator_ids)

    def planned(self, plan: Plan, encoding: Encoding, batch_tokens: int) -> Plan:
        """Apply the plan's limit of tokens, and return the plan, of chunks if they are requested.

        Args:
            plan: plan of the output.
            encoding: requested output.
            batch_tokens: maximum tokens of a batch.

        """
        self._options = replace(self._options, max_tokens=plan.max_tokens)
        if encoding.kind != "chunks" or not isinstance(plan, PooledPlan):
            return plan
        alone = replace(self._options, windows=False)
        return ChunksPlan.of(plan, self._tokenizer, alone, batch_tokens)

    def read(self, given: Sequence[str]) -> list[TokenizedText | Refused]:
        """Return the tokens of each text, or its rejection."""
        read = []
        for first in range(0, len(given), SLICE_TEXTS):
            read += self._slice(given[first : first + SLICE_TEXTS])
        return read

    def lacking(self, count: int) -> int:
        """Return the number of texts if the model names a prompt, and none is given; else 0."""
        return count if self._tokenizer.lacks_prompt(self._options) else 0

    def close(self) -> None:
        """Do nothing: a tokenizer has no threads."""

    def _slice(self, texts: Sequence[str]) -> list[TokenizedText | Refused]:
        try:
            return [*self._tokenizer.tokenize(texts, self._options)]
        except (InputTooLong, Unprocessable) as error:
            if len(texts) == 1:
                return [Refused.of(error)]
            return [outcome for text in texts for outcome in self._slice([text])]


class PictureFileReader:
    """Reader of pictures, in several threads."""

    separator_ids: frozenset[int] = frozenset()

    def __init__(self, reader: PictureReader, max_bytes: int, *, first_frame: bool) -> None:
        """Start the threads.

        Args:
            reader: preprocessing of the model's pictures.
            max_bytes: maximum bytes of a file.
            first_frame: whether an animated picture stands for its first frame.

        """
        self._reader, self._max_bytes, self._first_frame = reader, max_bytes, first_frame
        self._threads = ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), "pictures")

    def read(self, given: Sequence[str]) -> list[TokenizedText | Refused]:
        """Return the tokens of each picture, or its rejection."""
        return [*self._threads.map(self._one, given)]

    def lacking(self, count: int) -> int:
        """Return 0: pictures have no prompts."""
        del count
        return 0

    def close(self) -> None:
        """Drop waiting pictures, and end the threads."""
        self._threads.shutdown(cancel_futures=True)

    def _one(self, path: str) -> TokenizedText | Refused:
        data = read_picture(path, self._max_bytes)
        if isinstance(data, Refused):
            return data
        try:
            return self._reader.read(Picture(data, self._first_frame), PICTURE)
        except Unprocessable as error:
            return Refused.of_picture(error)


def reader_of(artifact: Artifact, settings: Settings, encoding: Encoding) -> Reader:
    """Return the reader of a model's texts or pictures."""
    manifest = artifact.manifest
    if manifest.images is None:
        limits = token_limits(settings, artifact)
        tokenizer = TextTokenizer(artifact.path(TOKENIZER), manifest.sentence, limits)
        return TextReader(tokenizer, encoding)
    encoding.check_for_pictures()
    require("encoding pictures", "PIL")
    from service.inference.pictures.reader import PictureReader

    reader = PictureReader(manifest, settings.max_image_pixels)
    return PictureFileReader(reader, settings.max_image_bytes, first_frame=encoding.first_frame)


def _options(tokenizer: TextTokenizer, encoding: Encoding) -> Options:
    """Return the tokenisation options of the texts."""
    options = Options(
        encoding.cuts,
        encoding.truncation_direction,
        encoding.prompt_name,
        encoding.task,
        naming="the text",
        windows=encoding.overflow == "windows" or not encoding.late,
    )
    try:
        tokenizer.tokenize([], options)
    except Unprocessable as error:
        text = str(error).replace("`task`", "--task").replace("task:", "--task:")
        text = text.replace("`prompt_name`", "--prompt-name").replace(
            "prompt_name", "--prompt-name"
        )
        raise UsageError(text) from None
    return options
